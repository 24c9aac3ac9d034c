# SPDX-License-Identifier: Apache-2.0
"""What the benchmark measures, free of any framework."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

ORDERS = ("forward", "backward", "second")
SIZES = (12, 1_000, 10_000, 100_000, 1_000_000)
LENGTHS = (2, 10, 100, 10_000)
WITH_ROWS_ONLY = ("matvec", "max_norm")  # of several components


@dataclass(frozen=True)
class Cell:
    operation: str
    order: str
    n: int
    length: int
    width: int
    dtype: str

    @property
    def segments(self) -> int:
        return max(1, round(self.n / self.length))

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the operands."""
        m, rows = self.segments, (self.n,) if self.width == 1 else (self.n, self.width)
        second = {"dot": rows, "mul": (m,), "mul_chain": (m,), "matvec": (m, self.width, self.width)}
        return [rows] + [shape for name, shape in second.items() if name == self.operation]


@dataclass(frozen=True)
class Jobs:
    """The calls of a cell; those that are compared are done when they return, or when `synchronize` does."""

    ours: Callable[[], object]
    rivals: dict[str, Callable[[], object]]
    copy: Callable[[], object]  # of as many bytes as the larger of input and result
    segment_reduce: Callable[[], object] | None
    synchronize: Callable[[], None]


def cells(operations: Sequence[str], short: bool, dtypes: Sequence[str]) -> Iterator[Cell]:
    """All cells, or about 60 of them for the first dtype."""
    for op in operations:
        if op == "mul_chain":
            yield from (Cell(op, order, 1_000_000, 10, 3, dtypes[0]) for order in ORDERS)
        elif short:
            for order, n in itertools.product(ORDERS, (12, 10_000, 1_000_000)):
                yield Cell(op, order, n, 10, 3 if op != "sum" or order != "forward" else 1, dtypes[0])
        else:
            for order, n, length, width, dtype in itertools.product(ORDERS, SIZES, LENGTHS, (1, 3), dtypes):
                if length <= n and not (op in WITH_ROWS_ONLY and width == 1):
                    yield Cell(op, order, n, length, width, dtype)
