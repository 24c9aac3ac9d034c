# SPDX-License-Identifier: Apache-2.0
"""The operations on 1-D Warp arrays: by the native engine where it can, by launches of kernels otherwise.

`_native` is the one place that decides: the engine takes contiguous arrays on the CPU while nothing is captured. Both
give the same bits. Arguments are not checked here (see `signatures`), but for the order of idx.

Importing this module initialises Warp, with the user's settings: programs may go on to `wp.from_torch` at once.
"""

import functools
import warnings
from typing import Any, NoReturn

import numpy as np
import warp as wp

from .. import _building
from . import launch
from ._registry import KEPT, SCALARS, kind
from .launch import matrices, rows

_building.initialise()

_SUFFIX = {scalar: suffix for suffix, scalar in SCALARS.items()}

INT32_ARGMAX = 4  # a bit of the engine's mode

# Off in tests of the kernels.
use_engine = True


@functools.cache
def _function(name: str, suffix: str) -> tuple[Any, tuple[str, ...], Any] | None:
    """A function of the engine, its argument names, and what says how many threads a job gets; None without engine."""
    try:
        from .. import native
        from ..ops.abi import arguments

        return getattr(native.load(), f"{name}_{suffix}" if suffix else name), arguments(name), native.threads
    except Exception as error:  # whatever it is, there is another way
        _say_once(f"segmentops: the native engine cannot be used, Warp kernels run instead: {error}")
        return None


@functools.cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _native(name: str, idx: wp.array, m: int, k: int, *, j: int = 0, **arrays: Any) -> bool:
    """Run operation `name` of the engine if it can take these arrays."""
    device = idx.device
    if not use_engine or not device.is_cpu or device.is_capturing or launch.cooperative_on_cpu:
        return False
    values: dict[str, Any] = {}
    suffix = None
    for argument, array in (("idx", idx), *arrays.items()):
        if array is None:
            continue
        if not array.is_contiguous:
            return False
        suffix = suffix or _SUFFIX.get(kind(array.dtype)[0])
        values[argument] = array.ptr
    found = suffix and _function(name, suffix)
    if not found:
        return False
    function, names, threads = found
    n = idx.shape[0]
    values.update(n=n, m=m, k=k, j=j, mode=INT32_ARGMAX | threads(n * max(k, j)) << 8)
    function(*[values.get(argument) for argument in names])
    return True


def in_order(launcher: str, idx: wp.array, m: int) -> wp.array:
    """idx as reductions want it, or a ValueError, where that can be seen: on the CPU, while nothing is captured.

    What is outside [0, m) may stand before and after all else, in any order; a copy of idx then has it in order.
    """
    device, n = idx.device, idx.shape[0]
    if n < 2 or not device.is_cpu or device.is_capturing:
        return idx
    found = _function("order", "")
    if found:
        order, _, threads = found
        if order(idx.ptr, n, idx.strides[0], threads(n) << 8) < 0:
            return idx
    values = idx.numpy()
    inside = np.flatnonzero((values >= 0) & (values < m))
    if not inside.size:
        return idx
    first, last = inside[0], inside[-1]
    descents = np.flatnonzero(np.diff(values[first : last + 1]) < 0)
    if inside.size <= last - first or descents.size:
        _refuse(launcher, values, m, first)
    if (np.diff(values) >= 0).all():  # there is no engine that could have said so
        return idx
    ordered = wp.empty(n, dtype=wp.int32, device=device)
    copy = ordered.numpy()
    copy[:first], copy[first : last + 1], copy[last + 1 :] = -1, values[first : last + 1], m
    return ordered


def _refuse(launcher: str, values: np.ndarray, m: int, first: int) -> NoReturn:
    """Raise for the first element in [0, m) that does not follow the elements of its segment or smaller ones."""
    before = first
    for i in range(first + 1, len(values)):
        if not 0 <= values[i] < m:
            continue
        if values[i] < values[before]:
            fault = f"comes after idx[{before}] = {values[before]}"
        elif before < i - 1:
            fault = f"comes after idx[{i - 1}] = {values[i - 1]}, which is out of range"
        else:
            before = i
            continue
        raise ValueError(
            f"{launcher}: idx must be sorted, but idx[{i}] = {values[i]} {fault}. "
            "Sort idx and the arrays of elements first; what is out of range goes to one end."
        )
    raise AssertionError(launcher)


def _width(x: wp.array) -> int:
    return kind(x.dtype)[1]


def _fill(x: wp.array, out: wp.array) -> launch.Rows:
    """x as rows; a scalar fills the components of a vector `out`."""
    return rows(x, None if _width(x) == _width(out) else _width(out))


# ------------------------------------------------------------------ reductions
def sum(x: wp.array, idx: wp.array, out: wp.array) -> None:
    m, k = out.shape[0], _width(x)
    if not _native("sum", idx, m, k, x=x, out=out):
        launch.reduce("sum", (rows(x),), idx, m, columns=k, out=rows(out))


def component_sum(x: wp.array, idx: wp.array, out: wp.array) -> None:
    launch.reduce("sum", (rows(x),), idx, out.shape[0], flat=True, out=rows(out))


def sum_to(g: wp.array, idx: wp.array, out: wp.array) -> None:
    """Sums of g, over its components too where out is of scalars."""
    (sum if _width(g) == _width(out) else component_sum)(g, idx, out)


def mean(x: wp.array, idx: wp.array, sums: wp.array | None, counts: wp.array | None, out: wp.array) -> None:
    m, k = out.shape[0], _width(x)
    if not _native("mean", idx, m, k, x=x, out=out, sums=sums, counts=counts):
        aux = None if sums is None else rows(sums)
        launch.reduce("sum", (rows(x),), idx, m, mode=launch.MEAN, columns=k, out=rows(out), aux=aux, counts=counts)


def dot(x: wp.array, y: wp.array, idx: wp.array, out: wp.array) -> None:
    m = out.shape[0]
    if not _native("dot", idx, m, _width(x), x=x, y=y, out=out):
        launch.reduce("dot", (rows(x), rows(y)), idx, m, flat=True, out=rows(out))


def dot_add(x: wp.array, y: wp.array, u: wp.array, w: wp.array, idx: wp.array, out: wp.array) -> None:
    """Sums of <x, y> + <u, w>."""
    m = out.shape[0]
    if not _native("dot_add", idx, m, _width(x), x=x, y=y, u=u, w=w, out=out):
        launch.reduce("dot_add", (rows(x), rows(y), rows(u), rows(w)), idx, m, flat=True, out=rows(out))


def inner_products(x: wp.array, y: wp.array, idx: wp.array, xy: wp.array, xx: wp.array, yy: wp.array) -> None:
    m, k = xy.shape[0], _width(x)
    products = ((x, y, xy), (x, x, xx), (y, y, yy))
    if all(_native("dot", idx, m, k, x=a, y=b, out=out) for a, b, out in products):
        return
    scalar = kind(xy.dtype)[0]
    if KEPT[scalar] is not scalar:  # the third of its results would be of another type
        for a, b, out in products:
            dot(a, b, idx, out)
        return
    launch.reduce(
        "inner_products", (rows(x), rows(y)), idx, m, mode=launch.COLUMNS, flat=True, columns=3,
        out=rows(xy), aux=rows(xx), inv=rows(yy),
    )  # fmt: skip


def rms_norm(
    x: wp.array, idx: wp.array, sum_sq: wp.array, counts: wp.array, out: wp.array, inv: wp.array | None = None
) -> None:
    m = out.shape[0]
    if not _native("rms_norm", idx, m, _width(x), x=x, out=out, inv=inv, sum_sq=sum_sq, counts=counts):
        launch.reduce(
            "dot", (rows(x), rows(x)), idx, m, mode=launch.RMS, flat=True, out=rows(out), aux=rows(sum_sq),
            inv=None if inv is None else rows(inv), counts=counts,
        )  # fmt: skip


def max_norm(x: wp.array, idx: wp.array, out: wp.array, at: wp.array | None = None) -> None:
    m = out.shape[0]
    if launch.cooperative_on_cpu or at is not None or not idx.device.is_cpu:
        native_at = at
    else:
        native_at = wp.empty(m, dtype=wp.int32, device=idx.device)  # the engine always wants it
    if not _native("max_norm", idx, m, _width(x), x=x, out=out, at=native_at):
        launch.reduce("max", (rows(x),), idx, m, mode=launch.NORM, j=launch.NORM, out=rows(out), counts=at)


def extreme(mode: Any, x: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = the largest (MAX) or smallest (MIN) of out[s] and x[i]."""
    launch.reduce("max", (rows(x),), idx, out.shape[0], mode=mode, j=mode, out=rows(out))


def outer(u: wp.array, w: wp.array, idx: wp.array, out: wp.array) -> None:
    m, k, j = out.shape[0], _width(u), _width(w)
    if not _native("outer", idx, m, k, j=j, v=u, w=w, out=out):
        launch.reduce("outer", (rows(u), rows(w)), idx, m, columns=k * j, j=j, out=rows(out))


count = launch.count


# ------------------------------------------------------------------ element-wise
def broadcast(y: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = y[s]; a scalar y fills the vectors of out."""
    m, k = y.shape[0], _width(out)
    if _width(y) != k or not _native("broadcast", idx, m, k, y=y, out=out):
        launch.element("broadcast", idx, m, rows(out), p=_fill(y, out))


def spread(y: wp.array, counts: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = y[s] / counts[s]."""
    launch.element("spread", idx, y.shape[0], rows(out), p=rows(y), counts=counts)


def mul(x: wp.array, s: wp.array, idx: wp.array, out: wp.array) -> None:
    m, k = s.shape[0], _width(x)
    if not _native("mul", idx, m, k, x=x, s=s, out=out):
        launch.linear(idx, m, rows(out), (rows(x), rows(s, k)))


def mul_add(x: wp.array, s: wp.array, y: wp.array, t: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = x[i] s + y[i] t."""
    m, k = s.shape[0], _width(x)
    if not _native("mul_add", idx, m, k, x=x, s=s, y=y, t=t, out=out):
        linear(idx, out, (x, s), (y, t))


def linear(
    idx: wp.array,
    out: wp.array,
    *products: tuple[wp.array, wp.array],
    base: wp.array | None = None,
    twice: bool = False,
) -> None:
    """out[i] = base[i] + sum of x[i] p[s] over the products; `twice` doubles the second. Outside [0, m) base alone."""
    k, m = _width(out), products[0][1].shape[0]
    pairs = [(rows(x), rows(p, k)) for x, p in products]
    launch.linear(idx, m, rows(out), *pairs, base=None if base is None else rows(base), twice=twice)


def add(x: wp.array, y: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = x[i] + y[s]; a scalar is added to every component."""
    launch.element("add", idx, y.shape[0], rows(out), x=_fill(x, out), p=_fill(y, out))


def mul_backward(g: wp.array, x: wp.array, s: wp.array, idx: wp.array, gx: wp.array, gs: wp.array) -> None:
    """gx[i] = g[i] s and gs[s] = sums of <g, x>, which the engine makes in one pass."""
    if not _native("mul_backward", idx, s.shape[0], _width(x), g=g, x=x, s=s, gx=gx, gs=gs):
        mul(g, s, idx, gx)
        dot(g, x, idx, gs)


def restrict(g: wp.array, idx: wp.array, m: int, out: wp.array) -> None:
    """out[i] = g[i], 0 outside [0, m); to a scalar, the sum of the components."""
    term = "copy" if _width(g) == _width(out) else "component_sum"
    launch.element(term, idx, m, rows(out), x=rows(g))


def rms_norm_backward(g: wp.array, x: wp.array, inv: wp.array, idx: wp.array, gx: wp.array) -> None:
    m = g.shape[0]
    if not _native("rms_norm_backward", idx, m, _width(x), g=g, x=x, inv=inv, gx=gx):
        launch.element("scale_twice", idx, m, rows(gx), x=rows(x), p=rows(g), q=rows(inv))


def rms_norm_double_backward(
    v: wp.array, g: wp.array, x: wp.array, inv: wp.array, idx: wp.array, gg: wp.array, gx: wp.array, counts: wp.array
) -> None:
    """gg[s] = <v, x> inv and gx[i], whose inner products stay float64; `counts` as of the forward pass."""
    m, device = g.shape[0], idx.device
    inner = wp.empty(m, dtype=wp.float64, device=device)
    own_counts = wp.empty(m, dtype=wp.int32, device=device)
    arrays = {"v": v, "g": g, "x": x, "inv": inv, "gg": gg, "gx": gx, "inner": inner, "counts": own_counts}
    if _native("rms_norm_double_backward", idx, m, _width(x), **arrays):
        return
    launch.reduce("dot", (rows(v), rows(x)), idx, m, mode=launch.WIDE, flat=True, wide=rows(inner))
    launch.segment("scale", rows(gg), inner, rows(inv))
    segments = {"p": rows(g), "q": rows(inv), "wide": inner, "counts": counts}
    launch.element("norm_second", idx, m, rows(gx), x=rows(v), y=rows(x), **segments)


def max_norm_backward(g: wp.array, x: wp.array, at: wp.array, idx: wp.array, gx: wp.array) -> None:
    m = g.shape[0]
    if not _native("max_norm_backward", idx, m, _width(x), g=g, x=x, at=at, gx=gx):
        launch.element("max_first", idx, m, rows(gx), x=rows(x), p=rows(g), counts=at)


def max_norm_double_backward(
    v: wp.array, g: wp.array, x: wp.array, at: wp.array, idx: wp.array, gg: wp.array, gx: wp.array
) -> None:
    m = g.shape[0]
    if not _native("max_norm_double_backward", idx, m, _width(x), v=v, g=g, x=x, at=at, gg=gg, gx=gx):
        launch.element("max_second", idx, m, rows(gx), x=rows(x), y=rows(v), p=rows(g), counts=at)
        launch.segment("at_maximum", rows(gg), rows(x), rows(v), at)


# ------------------------------------------------------------------ matrices
def matvec(v: wp.array, a: wp.array, idx: wp.array, out: wp.array) -> None:
    m = a.shape[0]
    if not _native("matvec", idx, m, _width(v), j=_width(out), v=v, a=a, out=out):
        launch.matvec(idx, m, rows(out), rows(v), matrices(a))


def matvec_t(g: wp.array, a: wp.array, idx: wp.array, out: wp.array) -> None:
    m = a.shape[0]
    if not _native("matvec_t", idx, m, _width(out), j=_width(g), w=g, a=a, out=out):
        launch.matvec(idx, m, rows(out), rows(g), matrices(a, transposed=True))


def matvec_add(v: wp.array, a: wp.array, w: wp.array, b: wp.array, idx: wp.array, out: wp.array) -> None:
    m = a.shape[0]
    if not _native("matvec_add", idx, m, _width(v), j=_width(out), v=v, a=a, w=w, b=b, out=out):
        launch.matvec(idx, m, rows(out), rows(v), matrices(a), rows(w), matrices(b))


# ------------------------------------------------------------------ segments
def divide(p: wp.array, counts: wp.array, out: wp.array) -> None:
    """out[s] = p[s] / counts[s], 0 where the count is 0."""
    launch.segment("divide", rows(out), rows(p), counts)
