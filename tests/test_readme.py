# SPDX-License-Identifier: Apache-2.0
"""The README's programs run as written and give what their comments say; so do commands, there and in the guides."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = ROOT / "README.md"
TEXTS = [README, *(ROOT / "docs").rglob("*.md")]
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: re.search(r"import (\w+)", p)[1])
def test_quick_start(program):
    *_, last = program.strip().splitlines()
    names: dict = {}
    exec(program, names)
    if "import torch" in program:
        assert names["out"].tolist() == [3.0, 12.0, 6.0]
        assert names["x"].grad.tolist() == [1.0] * 6
    elif "warp" in program:
        assert names["out"].numpy().tolist() == [3.0, 12.0, 6.0]
    else:
        assert eval(last.split("#")[0], names).tolist() == [3.0, 12.0, 6.0]


def test_there_is_one_for_each_framework():
    assert len(PROGRAMS) == 3


def test_commands_with_pytest(pytestconfig):
    """They start the interpreter of the environment that `make` sets up, and name tests and options that exist."""
    code = [words for path in TEXTS for words in re.findall(r"`[^`\n]*`|^    .*", path.read_text(), re.MULTILINE)]
    lines = [words.strip(" `") for words in code if "pytest " in words]
    files = set()
    for line in lines:
        start, _, words = line.partition("-m pytest ")
        assert re.fullmatch(r"([A-Z_]+=\w+ )?\.venv/bin/python ", start), line
        words = subprocess.run(["bash", "-c", "echo " + words], capture_output=True, text=True).stdout.split()
        for option in (word for word in words if word.startswith("-")):
            pytestconfig.getoption(option)
        files |= {word for word in words if not word.startswith("-")}
    assert len(files) > 10 and not [file for file in files if not (ROOT / file).exists()]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", *sorted(files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_is_installed_is_here_and_not_on_an_index():
    """Until there is a release: the clone, or a wheel of `make wheel`. A framework is another thing."""
    texts = "\n".join(path.read_text() for path in TEXTS)
    found = re.findall(r"pip install (?:-e )?(.*)", texts)
    here = ('".[', '"$(ls dist/segmentops-*.whl)[')
    assert found and not [what for what in found if not what.startswith(here)], found
    assert "dist" in re.search(r"\nwheel:.*?\n\n", (ROOT / "Makefile").read_text(), re.DOTALL)[0]
