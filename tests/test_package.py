# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it brings in, its version, its warning about a namesake."""

import pathlib
import subprocess
import sys
import warnings

import pytest

import nvalchemiops

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
def test_missing_framework_names_the_extra(framework):
    out = run(f"""
sys.modules[{framework!r}] = None
try:
    import nvalchemiops.{framework}.segment_ops
except ImportError as error:
    print(error)
""")
    assert f"nvalchemiops-segment-ops[{framework}]" in out


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
