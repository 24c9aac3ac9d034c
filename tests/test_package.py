# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it brings in, its version, its warning about a namesake; what tests may not do."""

import pathlib
import re
import subprocess
import sys
import tomllib
import warnings

import pytest

import nvalchemiops

ROOT = pathlib.Path(__file__).parents[1]
SRC = str(pathlib.Path(nvalchemiops.__file__).parent.parent)


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {SRC!r})\n" + code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_brings_no_framework():
    out = run("import nvalchemiops\nprint(*(m for m in ('torch', 'jax', 'warp', 'numpy') if m in sys.modules))")
    assert out.strip() == ""


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_missing_framework_says_what_to_install(framework):
    out = run(f"""
sys.modules[{framework!r}] = None
try:
    import nvalchemiops.{framework}.segment_ops
except ImportError as error:
    print(error)
""")
    (wanted,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][framework]
    assert f"pip install '{wanted}'" in out


def namesake(folder, record):
    info = folder / "nvalchemi_other_ops-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(record)
    return folder


def test_warns_of_another_distribution_with_our_package(tmp_path):
    namesake(tmp_path, "nvalchemi_other_ops-1.0.dist-info/METADATA,,\nnvalchemiops/__init__.py,,\n")
    with pytest.warns(UserWarning, match="nvalchemi_other_ops-1.0 also ships the package"):
        nvalchemiops._warn_of_other_distributions(tmp_path)


def test_does_not_warn_of_itself_or_of_unrelated_distributions(tmp_path):
    namesake(tmp_path, "something_else/__init__.py,,\n")
    own = tmp_path / "nvalchemiops_segment_ops-1.0.dist-info"
    own.mkdir()
    (own / "RECORD").write_text("nvalchemiops/__init__.py,,\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nvalchemiops._warn_of_other_distributions(tmp_path)


def test_algebra_doctests():
    import doctest

    from nvalchemiops import algebra

    assert doctest.testmod(algebra).failed == 0


def test_wheel(tmp_path):
    """What `make wheel` builds has all that the quick start needs, sources of the native code among it."""
    pytest.importorskip("hatchling")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        (source / name).symlink_to(ROOT / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(tmp_path / "dist")]
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), wheel], check=True)

    def files(folder):
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {path for path in found if path.suffix not in (".pyc", ".pyo")}

    assert files(tmp_path / "site" / "nvalchemiops") == files(pathlib.Path(nvalchemiops.__file__).parent)


CLOCKS = re.compile(r"\b(perf_counter|monotonic|process_time|thread_time|time\.time|timeit|default_timer)(_ns)?\b")


def test_no_test_reads_a_clock():
    """A bound on a time, or on a ratio of times, fails on a busy machine: such figures are rows of the benchmark."""
    here = pathlib.Path(__file__)
    files = [path for path in here.parent.rglob("*.py") if path != here]
    assert len(files) > 50 and CLOCKS.search("start = time.perf_counter()")
    assert [f"{path.name}: {found[0]}" for path in files for found in CLOCKS.finditer(path.read_text())] == []
