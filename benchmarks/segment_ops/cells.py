# SPDX-License-Identifier: Apache-2.0
"""What the benchmark measures, free of any framework."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from segmentops.ops.table import OPERATIONS, Operand

ORDERS = ("forward", "backward", "second")
SIZES = (12, 1_000, 10_000, 100_000, 1_000_000)
LENGTHS = (2, 10, 100, 10_000)
# Shapes of the operands and of the result: x (N, *F), s (M, *F), y (M,), a (M, F, F).
_LETTERS = {"nk": "x", "nj": "x", "mk": "s", "m": "y", "mkj": "a"}


def _letters(arrays: Sequence[Operand]) -> str:
    return "".join(_LETTERS[a.lead + "".join(a.trail)] for a in arrays)


SHAPES = {op.name: (_letters(op.operands), _letters(op.results[:1])) for op in OPERATIONS.values() if op.public}
SHAPES["mul_chain"] = SHAPES["mul"]  # mul between element-wise operations
WITH_ROWS_ONLY = ("matvec", "max_norm")  # of several components


# ------------------------------------------------------------------ how long the segments are
Rng = np.random.Generator


def _random(n: int, m: int, rng: Rng) -> np.ndarray:
    """Every element's segment is drawn alone."""
    return np.bincount(rng.integers(0, m, n), minlength=m)


def _power(n: int, m: int, rng: Rng) -> np.ndarray:
    """The chance of a segment falls with the power 1.5 of its rank; ranks are shuffled."""
    chance = rng.permutation(np.arange(1, m + 1) ** -1.5)
    return rng.multinomial(n, chance / chance.sum())


def _giant(n: int, m: int, _: Rng) -> np.ndarray:
    """Singletons, and all else in the segment in the middle."""
    lengths = np.ones(m, int)
    lengths[m // 2] += n - m
    return lengths


def _repeated(*pattern: int) -> Callable[[int, int, Rng], np.ndarray]:
    def lengths(n: int, m: int, _: Rng) -> np.ndarray:
        found = np.resize(pattern, m)
        found[-1] += n - found.sum()
        return found

    return lengths


def _gaps(n: int, m: int, _: Rng) -> np.ndarray:
    """Singletons, with as many empty segments between any two."""
    lengths = np.zeros(m, int)
    lengths[:: m // n][:n] = 1
    return lengths


# `chunk` and `tiers` are the worst known for the CPU engine. A run that starts a list (native/include/segment/runs.h)
# is looked at alone, and so is one of 16 384 behind a singleton, but only after all of its idx has been read. In a list
# of all tiers' lengths (tiers.h) every tier leaves something to the next.
DISTRIBUTIONS: dict[str, Callable[[int, int, Rng], np.ndarray]] = {
    "random": _random,
    "power": _power,
    "giant": _giant,
    "chunk": _repeated(1, 16383),
    "tiers": _repeated(1, 5, 9, 17, 33, 65, 129),
    "gaps": _gaps,
}


# ------------------------------------------------------------------ one cell
@dataclass(frozen=True)
class Data:
    """A cell's arrays: operands, idx, the result's cotangent, and for the second order the gradients' cotangents."""

    inputs: list[np.ndarray]
    idx: np.ndarray
    cotangent: np.ndarray
    moving: list[np.ndarray]


@dataclass(frozen=True)
class Cell:
    operation: str
    order: str
    dtype: str
    width: int
    n: int
    m: int
    distribution: str = "random"

    def row(self) -> dict[str, str]:
        """The columns of the result that name the cell."""
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "total_elements": str(self.n),
            "num_segments": str(self.m),
            "avg_segment_length": f"{self.n / self.m:.6g}",
            "order": self.order,
            "width": str(self.width),
            "distribution": self.distribution,
        }

    def _shape(self, letter: str) -> tuple[int, ...]:
        trail = (self.width,) if self.width > 1 else ()
        return {"x": (self.n, *trail), "s": (self.m, *trail), "y": (self.m,), "a": (self.m, *trail, *trail)}[letter]

    def largest(self) -> tuple[int, ...]:
        """The shape of the larger of inputs and result."""
        operands, result = SHAPES[self.operation]
        return max(map(self._shape, operands + result), key=np.prod)

    def data(self) -> Data:
        """In float64 or float32; half precision is up to the framework."""
        rng = np.random.default_rng(0)
        dtype = np.float64 if self.dtype == "float64" else np.float32
        operands, result = SHAPES[self.operation]

        def draw(letters: str) -> list[np.ndarray]:
            return [rng.standard_normal(self._shape(letter), dtype) for letter in letters]

        lengths = DISTRIBUTIONS[self.distribution](self.n, self.m, rng)
        idx = np.repeat(np.arange(self.m), lengths)
        assert len(idx) == self.n and len(lengths) == self.m and lengths.min() >= 0, self
        return Data(draw(operands), idx, *draw(result), draw(operands))


Job = Callable[[], object]


@dataclass(frozen=True)
class Jobs:
    """The calls of a cell. `rivals` say the same in the framework's own operations."""

    ours: Job
    rivals: dict[str, Job]
    copy: Job  # of as many bytes as the larger of input and result
    others: dict[str, Job] = field(default_factory=dict)  # what else is measured, by the name of its column


# ------------------------------------------------------------------ sets of cells
Grid = Iterator[Cell]


def short(operations: Sequence[str], dtypes: Sequence[str]) -> Grid:
    """About 60 cells, for the first dtype."""
    for op, order, n in itertools.product(operations, ORDERS, (12, 10_000, 1_000_000)):
        yield Cell(op, order, dtypes[0], 1 if (op, order) == ("sum", "forward") else 3, n, max(1, round(n / 10)))


def full(operations: Sequence[str], dtypes: Sequence[str]) -> Grid:
    for op, order, n, length, width, dtype in itertools.product(operations, ORDERS, SIZES, LENGTHS, (1, 3), dtypes):
        if length <= n:
            yield Cell(op, order, dtype, width, n, max(1, round(n / length)))


SKEWED_N = 400_000
FEW = (1, 6, 24, 10_000)
WIDE = (32, 34, 35, 36, 128, 1091, 1097)
WIDE_SCALARS = 3_200_000
NARROW = (2, 4, 5, 8, 16)
NARROW_SCALARS = 1_000_000
LARGE = (3, 64)
LARGE_SCALARS = 25_600_000  # results of 100 MB: memory that the kernel has to provide anew


def skewed(operations: Sequence[str], dtypes: Sequence[str]) -> Grid:
    """Uneven lengths, few long segments (also in float16), other widths, large arrays."""
    n, orders = SKEWED_N, ORDERS[:2]
    segments = {"power": n // 10, "giant": n // 2, "chunk": 2 * (n // 16384), "tiers": 7 * (n // 259), "gaps": 4 * n}
    for op, order, width, (name, m) in itertools.product(operations, orders, (1, 3), segments.items()):
        yield Cell(op, order, dtypes[0], width, n, m, name)
    for op, order, m, dtype in itertools.product(operations, orders, FEW, (dtypes[0], "float16")):
        yield Cell(op, order, dtype, 3 if op in WITH_ROWS_ONLY else 1, n, m)
    scalars = dict.fromkeys(NARROW, NARROW_SCALARS) | dict.fromkeys(WIDE, WIDE_SCALARS)
    scalars |= dict.fromkeys(LARGE, LARGE_SCALARS)
    for op, order, width in itertools.product(operations, orders, scalars):
        if op != "matvec" or width <= 16:  # else a matrix per segment would be all there is to read
            rows = round(scalars[width] / width)
            yield Cell(op, order, dtypes[0], width, rows, max(1, rows // 10))


SETS = {"short": short, "full": full, "skewed": skewed}


def cells(name: str, operations: Sequence[str], dtypes: Sequence[str]) -> Grid:
    """The cells of a set that make sense."""
    simple = [op for op in operations if op != "mul_chain"]
    yield from (c for c in SETS[name](simple, dtypes) if c.width > 1 or c.operation not in WITH_ROWS_ONLY)
    if "mul_chain" in operations and name != "skewed":
        yield from (Cell("mul_chain", order, dtypes[0], 3, 1_000_000, 100_000) for order in ORDERS)


# ------------------------------------------------------------------ results
Row = dict[str, str]
KEY = "framework device operation order dtype width total_elements num_segments distribution".split()


def key(row: Row) -> tuple[str, ...]:
    """What names a row of a CSV."""
    return tuple(row[name] for name in KEY)


def brief(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0e}".replace("e+0", "e")


def place(row: Row, with_length: bool) -> tuple:
    """A row's place among the columns of a table, which sort, and that column's title last."""
    n, m, width = int(row["total_elements"]), int(row["num_segments"]), int(row["width"])
    if row["distribution"] != "random":
        return (1, 0, 0, row["distribution"])
    if n * width >= LARGE_SCALARS - width:
        return (4, width, 0, f"{LARGE_SCALARS / 1e6:.3g} million scalars, width {width}")
    if n == SKEWED_N:
        return (2, m, 0, f"M = {m:,}")
    if width not in (1, 3):
        return (3, width, 0, f"width {width}")
    if not with_length:
        return (0, n, 0, f"N = {n:,}")
    return (0, n, n / m, f"{brief(n)} / {brief(n / m)}")
