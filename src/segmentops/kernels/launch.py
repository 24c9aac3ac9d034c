# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels: from arrays of any strides to kernel arguments, and which kernels a job takes.

Nothing here reads device memory, allocates other than through `Place.empty` (wp.empty for Warp arrays), or
synchronises, so every function can be captured. Arrays come as `Rows`: (rows, columns) of a scalar type, with
strides in bytes. The device of idx says where a job goes; it may be a `Place`, which also names the stream.
"""

from typing import Any, NamedTuple

import warp as wp

from . import _packed
from . import element as _element
from . import reduce as _reduce
from . import segment as _segment
from . import select as _select
from ._packed import Place, place_of
from ._registry import SIZES, THREADS, kind, type_name
from .reduce import COLUMNS, MAX, MEAN, MIN, NORM, PLAIN, RMS, TERMS, WIDE

__all__ = [
    "COLUMNS", "MAX", "MEAN", "MIN", "NORM", "PLAIN", "RMS", "WIDE",
    "Place", "Rows", "count", "element", "extreme", "linear", "matvec", "matrices", "pick", "place", "reduce", "rows",
    "segment",
]  # fmt: skip

SUPER = 4096
# One thread block fills a gap of empty segments; above this many segments a launch of its own clears all of them.
INLINE_GAPS = 1 << 17
SERIAL_GAPS = 4096  # where one thread fills it
MAX_GROUPS = 3  # of columns that the cooperative kernel takes; wider data have columns enough to share out
SERIAL_SPAN = 4096  # positions a thread of a serial kernel: on the CPU,
WIDE_SPAN = 32  # and on CUDA
MAX_SCALARS = (1 << 31) - SUPER - 1  # positions are 32 bits wide in the kernels

# The tests run the cooperative kernels on the CPU, as fibers (wp.config.enable_cpu_blocks).
cooperative_on_cpu = False


class Rows(NamedTuple):
    """An array as the kernels see it: (rows, columns) or (rows, k, j) scalars, strides in bytes.

    `base` has a `device` and keeps the memory.
    """

    base: Any
    pointer: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def packed(self) -> bool:
        """Whether each row follows the one before without a gap."""
        size = SIZES[self.dtype]
        return self.shape[1] == 1 or self.strides == (self.shape[1] * size, size)

    def flat(self) -> "Rows":
        """All scalars of packed rows below each other."""
        n, k = self.shape
        return Rows(self.base, self.pointer, self.dtype, (n * k, 1), (self.strides[-1 if k > 1 else 0],) * 2)

    @property
    def device(self) -> Any:
        return self.base.device

    def repeated(self, columns: int) -> "Rows":
        """One column, repeated."""
        n, _ = self.shape
        return Rows(self.base, self.pointer, self.dtype, (n, columns), (self.strides[0], 0))

    def columns(self) -> "Rows":
        """Packed (rows, k, j) as (rows, k j)."""
        n, k, j = self.shape
        return Rows(self.base, self.pointer, self.dtype, (n, k * j), (self.strides[0], self.strides[2]))

    def transposed(self) -> "Rows":
        """(rows, k, j) as (rows, j, k)."""
        n, k, j = self.shape
        return Rows(self.base, self.pointer, self.dtype, (n, j, k), (self.strides[0], *self.strides[:0:-1]))

    def array(self, device: Any) -> wp.array:
        """A Warp array of the same memory: what Warp records in a capture on the CPU."""
        view = wp.array(
            ptr=self.pointer, dtype=self.dtype, shape=self.shape, strides=self.strides, device=device, copy=False
        )
        view._ref = self.base
        return view


def pointer(array: Any) -> int:
    """The address of a Warp array or of `Rows`."""
    return (array.ptr or 0) if isinstance(array, wp.array) else array.pointer


def rows(x: wp.array, columns: int | None = None) -> Rows:
    """A 1-D array of scalars, vectors or matrices as rows; a scalar may be repeated over `columns`."""
    scalar, size = kind(x.dtype)
    (n,), (stride,) = x.shape, x.strides
    if size == 1:
        return Rows(x, x.ptr or 0, scalar, (n, columns or 1), (stride, 0 if columns else stride))
    return Rows(x, x.ptr or 0, scalar, (n, size), (stride, SIZES[scalar]))


def matrices(x: wp.array, transposed: bool = False) -> Rows:
    """A 1-D array of 3 x 3 matrices as (rows, 3, 3)."""
    scalar, _ = kind(x.dtype)
    strides = (3 * SIZES[scalar], SIZES[scalar])
    return Rows(x, x.ptr or 0, scalar, (x.shape[0], 3, 3), (x.strides[0], *(strides[::-1] if transposed else strides)))


def _launch(kernel: wp.Kernel, dim: tuple[int, ...], arguments: list[Any], device: Any, tiled: bool = False) -> None:
    _packed.launch(kernel, dim, arguments, place_of(device), tiled)


def _plan(term: str, columns: int, j: int, device: Any) -> tuple[bool, str, int]:
    """Whether the cooperative kernel serves, the term that it has, and into how many groups the columns fall."""
    if not (device.is_cuda or cooperative_on_cpu):
        return False, term, columns
    if term == "inner_products":
        return True, term, 1
    if (j if term == "outer" else columns) % 3 == 0 and term + "3" in TERMS:
        return columns <= MAX_GROUPS * 3, term + "3", columns // 3
    return term != "outer" and columns <= MAX_GROUPS, term, columns


def reduce(
    term: str,
    data: tuple[Rows, ...],
    idx: wp.array,
    m: int,
    *,
    mode: int = PLAIN,
    flat: bool = False,
    columns: int = 1,
    j: int = 0,
    out: Rows | None = None,
    aux: Rows | None = None,
    inv: Rows | None = None,
    wide: Any = None,
    counts: Any = None,
) -> None:
    """Reduce `term` of the data over the segments.

    flat: an item is a scalar of a row, not a row. columns: how many sums a segment has.
    """
    n, device = idx.shape[0], idx.device
    scalar, index = type_name(data[0].dtype), type_name(idx.dtype)
    per = data[0].shape[1] if flat else 1
    largest = max(n * max(per, 1), data[0].shape[1])
    if largest > MAX_SCALARS:
        raise ValueError(f"reductions are limited to {MAX_SCALARS} scalars, got {largest}")
    if m == 0 or columns == 0:
        return
    if mode == MEAN and scalar == "f64":
        term = "mean"
    cooperative, name, groups = _plan(term, columns, j, device)
    outputs = [out, aux, inv, wide, counts]
    fills = term != "max" or mode == NORM  # max and min leave empty segments alone
    gaps = fills and m <= (INLINE_GAPS if cooperative or device.is_cpu else SERIAL_GAPS)
    if fills and (n == 0 or per == 0 or not gaps):
        clear(m, 1 if mode == COLUMNS else columns, -1 if mode == NORM else 0, scalar, outputs, device)
    if per == 0 and counts is not None:
        count(idx, counts)
    if n == 0 or per == 0:
        return
    stride = divisor = 1
    if flat and per > 1:
        if all(x.packed for x in data):
            data, stride = tuple(x.flat() for x in data), per
        else:
            divisor = per
    near = int(flat or columns == 1 and term != "outer")
    span = SERIAL_SPAN if device.is_cpu else WIDE_SPAN
    items = n * per
    part = None
    if items > SUPER:
        part = place_of(device).empty((2 * (items // SUPER + 1), columns), wp.vec2d)
    four = [*data, *(4 - len(data)) * [None]]
    arguments = [*four, idx, n, m, span, per, stride, divisor, near, j, int(gaps), mode, *outputs, part]
    if cooperative:
        kernel = _reduce.cooperative(name, scalar, index)["reduce"]
        _launch(kernel, (groups, (n + THREADS - 1) // THREADS), arguments, device, tiled=True)
    else:
        kernel = _reduce.serial(term, scalar, index)["reduce"]
        _launch(kernel, ((n + span - 1) // span, columns), arguments, device)
    if part is not None:
        kernel = _reduce.combine("max" if term == "max" else "sum", scalar, index)["combine"]
        _launch(kernel, (items // SUPER + 1, columns), [idx, n, m, per, mode, *outputs, part], device)


def clear(m: int, columns: int, none: int, scalar: str, outputs: list[Any], device: Any) -> None:
    """Write what a reduction says of an empty segment to all segments."""
    kernel = _segment.segment("segment", scalar, "i32")["clear"]
    _launch(kernel, (m, columns), [none, *outputs], device)


def count(idx: wp.array, counts: wp.array) -> None:
    """How many elements each segment has."""
    m, n = counts.shape[0], idx.shape[0]
    if m:
        clear(m, 1, 0, "f32", [None, None, None, None, counts], idx.device)
    if n and m:
        kernel = _segment.count("count", "f32", type_name(idx.dtype))["lengths"]
        _launch(kernel, (n,), [idx, n, m, counts], idx.device)


def element(
    term: str,
    idx: wp.array,
    m: int,
    out: Rows,
    *,
    x: Rows | None = None,
    y: Rows | None = None,
    p: Rows | None = None,
    q: Rows | None = None,
    wide: Any = None,
    counts: Any = None,
) -> None:
    """out[i, k] = a term of the element's data x, y and its segment's p, q, wide, counts."""
    _element_wise(term, idx, out, [m, x, y, p, q, wide, counts, out])


def linear(
    idx: wp.array,
    m: int,
    out: Rows,
    *products: tuple[Rows, Rows],
    base: Rows | None = None,
    twice: bool = False,
) -> None:
    """out[i] = base[i] + sum of x[i] p[s] over the products (x, p): one, two or four; `twice` doubles the second."""
    flat: list[Any] = [array for product in products for array in product]
    flat += [None] * (8 - len(flat))
    _element_wise("linear", idx, out, [m, base, *flat[:4], int(twice), *flat[4:], out])


def matvec(idx: wp.array, m: int, out: Rows, x: Rows, p: Rows, y: Rows | None = None, q: Rows | None = None) -> None:
    """out[i] = p[s]^T x[i], plus q[s]^T y[i] where given."""
    _element_wise("matvec", idx, out, [m, x, p, y, q, out])


def _element_wise(name: str, idx: wp.array, out: Rows, arguments: list[Any]) -> None:
    kernel = _element.element("element", type_name(out.dtype), type_name(idx.dtype))[name]
    _launch(kernel, out.shape, [idx, *arguments], idx.device)


def segment(name: str, out: Rows, *arguments: Any) -> None:
    """An operation of `kernels.segment` on (rows, columns) of out."""
    kernel = _segment.segment("segment", type_name(out.dtype), "i32")[name]
    dim = out.shape if name == "divide" else out.shape[:1]
    _launch(kernel, dim, [*arguments, out], out.device)


def _selects(x: Rows, idx: wp.array) -> dict[str, wp.Kernel]:
    return _select.select("select", type_name(x.dtype), type_name(idx.dtype))


def extreme(idx: wp.array, m: int, x: Rows, out: Rows, at: Rows, sign: int) -> None:
    """The largest (sign 1) or smallest (-1) of each column of each segment, and where it is."""
    kernels = _selects(x, idx)
    _launch(kernels["none"], out.shape, [out, at], idx.device)
    _launch(kernels["extreme"], x.shape, [idx, x.shape[0], m, sign, x, out, at], idx.device)


def pick(idx: wp.array, x: Rows, at: Rows, out: Rows) -> None:
    _launch(_selects(x, idx)["pick"], out.shape, [x, at, out], idx.device)


def place(idx: wp.array, m: int, y: Rows, at: Rows, out: Rows) -> None:
    _launch(_selects(y, idx)["place"], out.shape, [idx, m, y, at, out], idx.device)
