# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it brings in; what tests may not do."""

import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import segmentops

ROOT = pathlib.Path(__file__).parents[1]
SRC = str(pathlib.Path(segmentops.__file__).parent.parent)


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {SRC!r})\n" + code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_brings_no_framework():
    out = run("import segmentops\nprint(*(m for m in ('torch', 'jax', 'warp', 'numpy') if m in sys.modules))")
    assert out.strip() == ""


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_missing_framework_says_what_to_install(framework):
    out = run(f"""
sys.modules[{framework!r}] = None
try:
    import segmentops.{framework}.segment_ops
except ImportError as error:
    print(error)
""")
    (wanted,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][framework]
    assert f"pip install '{wanted}'" in out


CLOCKS = re.compile(r"\b(perf_counter|monotonic|process_time|thread_time|time\.time|timeit|default_timer)(_ns)?\b")


def test_no_test_reads_a_clock():
    """A bound on a time, or on a ratio of times, fails on a busy machine: such figures are rows of the benchmark."""
    here = pathlib.Path(__file__)
    files = [path for path in here.parent.rglob("*.py") if path != here]
    assert len(files) > 50 and CLOCKS.search("start = time.perf_counter()")
    assert [f"{path.name}: {found[0]}" for path in files for found in CLOCKS.finditer(path.read_text())] == []
