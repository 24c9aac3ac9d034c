# SPDX-License-Identifier: Apache-2.0
"""Which cases of a test `make test` runs, and which are left to `make test-rest`.

A test that has parameters is run with enough of its cases that every value of each parameter, and every pair of values
of two parameters that occurs, is in one of them; the other cases are marked `rest`. A parameter that is a dataclass
counts as one for each of its fields. All cases of an op whose code is another op's are left. The choice depends on the
test's own cases only, so it is the same everywhere.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Mapping, Sequence

import pytest

Values = Mapping[str, object]


def cover(cases: Sequence[Values]) -> set[int]:
    """Some of the cases (their places) that have every value and every pair of values that the cases have.

    Always next is the case with most pairs that are new (the first of several). What a case adds only falls: it is
    counted again only when the case is next.
    """
    pairs = [set(itertools.combinations_with_replacement(case.items(), 2)) for case in cases]
    seen: set = set()
    chosen = set()
    heap = [(-len(found), k) for k, found in enumerate(pairs)]  # sorted: the first of those without parameters
    heapq.heapify(heap)
    while heap:
        expected, k = heapq.heappop(heap)
        added = len(pairs[k] - seen)
        if added == -expected and (added or not chosen):
            chosen.add(k)
            seen |= pairs[k]
        elif added:
            heapq.heappush(heap, (-added, k))
    return chosen


def key(value: object) -> object:
    """Equal for what is the same value: 1 is not True, and what cannot be hashed is what it looks like."""
    try:
        hash(value)
    except TypeError:
        value = repr(value)
    return type(value), value


def values(item: pytest.Item) -> Values:
    """A case's value of each parameter."""
    found: dict[str, object] = {}
    callspec = getattr(item, "callspec", None)
    for name, value in callspec.params.items() if callspec else ():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found |= {f"{name}.{field.name}": key(getattr(value, field.name)) for field in dataclasses.fields(value)}
        else:
            found[name] = key(value)
    return found


def by_test(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The cases of each test."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return list(found.values())


def twin(item: pytest.Item) -> bool:
    """Whether a parameter is an op, or a case of one, whose code another op's cases run."""
    callspec = getattr(item, "callspec", None)
    return any(getattr(getattr(v, "op", v), "twin", False) for v in (callspec.params.values() if callspec else ()))


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for cases in by_test(items):
        alone = [item for item in cases if not twin(item)] or cases
        kept = cover([values(item) for item in alone])
        chosen = {id(item) for k, item in enumerate(alone) if k in kept}
        for item in cases:
            if id(item) not in chosen:
                item.add_marker(pytest.mark.rest)
