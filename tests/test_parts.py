# SPDX-License-Identifier: Apache-2.0
"""`make test` and `make test-rest` run every case between them, none twice, and the first has every pair of values."""

import itertools
import pathlib
import subprocess
import sys

import parts
import pytest

SIZES = [(), (1,), (5,), (2, 2), (7, 9, 2, 2, 7), (3, 4, 5), (1, 2, 1, 2), (13, 17)]


def combinations(sizes):
    return [dict(zip("abcde", values, strict=False)) for values in itertools.product(*map(range, sizes))]


def pairs(cases):
    """Two values of two parameters, or one of one."""
    return {frozenset(pair) for case in cases for pair in itertools.product(case.items(), repeat=2)}


@pytest.mark.parametrize("missing", [0, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_pair_of_values_is_kept(sizes, missing):
    """Also where not every combination is a case."""
    cases = combinations(sizes)
    cases = [case for k, case in enumerate(cases) if not missing or k % missing or k == 0]
    kept = parts.cover(cases)
    assert kept and kept <= set(range(len(cases)))
    assert pairs([cases[k] for k in kept]) == pairs(cases)
    assert kept == parts.cover(cases)  # the same whenever it is asked for


def test_few_cases_are_kept():
    """Not many more than the largest two parameters have pairs."""
    assert len(parts.cover(combinations((7, 9, 2, 2, 7)))) < 1.5 * 7 * 9
    assert len(parts.cover(combinations((3, 3, 3, 3)))) < 3 * 3 * 2
    assert len(parts.cover(combinations((13, 17)))) == 13 * 17


def test_values_that_python_takes_for_equal_are_not():
    assert len({parts.key(value) for value in (1, True, 1.0, "1", (1,))}) == 5
    assert parts.key([1, 2]) == parts.key([1, 2]) != parts.key([1, 3])  # cannot be hashed


PROGRAM = """
from dataclasses import dataclass
import pytest

@dataclass(frozen=True)
class Case:
    op: str
    dtype: str

every_case = pytest.mark.parametrize("case", [Case(op, dtype) for op in "abc" for dtype in "xyz"])

@every_case
@pytest.mark.parametrize("size", [1, 2, 3])
def test_many(case, size): pass

@every_case
def test_fields(case): pass

@pytest.mark.parametrize("size", [1, 2, 3])
class TestGroup:
    @pytest.mark.parametrize("other", [True, None])
    @pytest.mark.parametrize("another", [True, None])
    def test_in_a_class(self, size, other, another): pass

def test_without_parameters(): pass

@pytest.mark.rest
def test_left_out(): pass
"""


def test_both_parts_are_the_whole(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text("from parts import pytest_collection_modifyitems")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rest: more\n")

    def collected(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *options]
        path = str(pathlib.Path(parts.__file__).parent)
        done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    every, first, rest = collected(), collected("-m", "not rest"), collected("-m", "rest")
    assert len(every) == 27 + 9 + 12 + 2 and sorted(first + rest) == sorted(every)
    counts = [sum(name in line for line in first) for name in ("many", "fields", "class", "without", "left")]
    assert 9 <= counts[0] <= 12 and counts[1:] == [9, 6, 1, 0]
