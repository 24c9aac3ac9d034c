# SPDX-License-Identifier: Apache-2.0
"""The README's programs run as written and give what their comments say."""

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"
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
