# SPDX-License-Identifier: Apache-2.0
"""The operations of `segmentops.ops` by launches of kernels, on `Rows`: what the bindings run on CUDA.

Elements are (n, columns), segment scalars (m, 1), segment matrices (m, k, j), positions an int32 a segment. Any widths,
strides, scalar types and index types. An operation that is a sum of primitives is run as such, from its program.
"""

from collections.abc import Callable
from typing import Any

import warp as wp

from ..ops import calculus
from . import launch
from ._packed import place_of
from .launch import Rows


def _scratch(idx: Any, m: int, dtype: Any) -> Any:
    return place_of(idx.device).empty((m,), dtype)


def _sum(mode: int) -> Callable[..., None]:
    def run(idx: Any, m: int, x: Rows, out: Rows) -> None:
        launch.reduce("sum", (x,), idx, m, mode=mode, columns=x.shape[1], out=out)

    return run


def _dot(idx: Any, m: int, x: Rows, y: Rows, out: Rows) -> None:
    launch.reduce("dot", (x, y), idx, m, flat=True, out=out)


def _dot_add(idx: Any, m: int, x: Rows, y: Rows, u: Rows, w: Rows, out: Rows) -> None:
    launch.reduce("dot_add", (x, y, u, w), idx, m, flat=True, out=out)


def _outer(idx: Any, m: int, v: Rows, w: Rows, out: Rows) -> None:
    k, j = v.shape[1], w.shape[1]
    launch.reduce("outer", (v, w), idx, m, columns=k * j, j=j, out=out.columns())


def _broadcast(idx: Any, m: int, y: Rows, out: Rows) -> None:
    launch.element("broadcast", idx, m, out, p=y)


def _spread(idx: Any, m: int, y: Rows, out: Rows) -> None:
    counts = _scratch(idx, m, wp.int32)
    launch.count(idx, counts)
    launch.element("spread", idx, m, out, p=y, counts=counts)


def _mul(idx: Any, m: int, x: Rows, s: Rows, out: Rows) -> None:
    launch.linear(idx, m, out, (x, s.repeated(x.shape[1])))


def _mul_add(idx: Any, m: int, x: Rows, s: Rows, y: Rows, t: Rows, out: Rows) -> None:
    k = x.shape[1]
    launch.linear(idx, m, out, (x, s.repeated(k)), (y, t.repeated(k)))


def _matvec(idx: Any, m: int, v: Rows, a: Rows, out: Rows) -> None:
    launch.matvec(idx, m, out, v, a)


def _matvec_t(idx: Any, m: int, w: Rows, a: Rows, out: Rows) -> None:
    launch.matvec(idx, m, out, w, a.transposed())


def _matvec_add(idx: Any, m: int, v: Rows, a: Rows, w: Rows, b: Rows, out: Rows) -> None:
    launch.matvec(idx, m, out, v, a, w, b)


def _rms_norm(idx: Any, m: int, x: Rows, out: Rows, inv: Rows) -> None:
    launch.reduce("dot", (x, x), idx, m, mode=launch.RMS, flat=True, out=out, inv=inv)


def _rms_norm_backward(idx: Any, m: int, g: Rows, x: Rows, inv: Rows, gx: Rows) -> None:
    launch.element("scale_twice", idx, m, gx, x=x, p=g, q=inv)


def _rms_norm_double_backward(idx: Any, m: int, v: Rows, g: Rows, x: Rows, inv: Rows, gg: Rows, gx: Rows) -> None:
    inner, counts = _scratch(idx, m, wp.float64), _scratch(idx, m, wp.int32)
    wide = Rows(inner, launch.pointer(inner), wp.float64, (m, 1), (8, 8))
    launch.reduce("dot", (v, x), idx, m, mode=launch.WIDE, flat=True, wide=wide, counts=counts)
    launch.segment("scale", gg, inner, inv)
    launch.element("norm_second", idx, m, gx, x=v, y=x, p=g, q=inv, wide=inner, counts=counts)


def _max_norm(idx: Any, m: int, x: Rows, out: Rows, at: Any) -> None:
    launch.reduce("max", (x,), idx, m, mode=launch.NORM, j=launch.NORM, out=out, counts=at)


def _max_norm_backward(idx: Any, m: int, g: Rows, x: Rows, at: Any, gx: Rows) -> None:
    launch.element("max_first", idx, m, gx, x=x, p=g, counts=at)


def _max_norm_double_backward(idx: Any, m: int, v: Rows, g: Rows, x: Rows, at: Any, gg: Rows, gx: Rows) -> None:
    launch.element("max_second", idx, m, gx, x=x, y=v, p=g, counts=at)
    launch.segment("at_maximum", gg, x, v, at)


def _extreme(sign: int) -> Callable[..., None]:
    def run(idx: Any, m: int, x: Rows, out: Rows, at: Rows) -> None:
        launch.extreme(idx, m, x, out, at, sign)

    return run


def _pick(idx: Any, m: int, x: Rows, at: Rows, out: Rows) -> None:
    launch.pick(idx, x, at, out)


def _place(idx: Any, m: int, y: Rows, at: Rows, out: Rows) -> None:
    launch.place(idx, m, y, at, out)


# name: (idx, m, *operands, *results)
LAUNCHES: dict[str, Callable[..., None]] = {
    "sum": _sum(launch.PLAIN),
    "mean": _sum(launch.MEAN),
    "dot": _dot,
    "dot_add": _dot_add,
    "outer": _outer,
    "broadcast": _broadcast,
    "max": _extreme(1),
    "min": _extreme(-1),
    "pick": _pick,
    "place": _place,
    "spread": _spread,
    "mul": _mul,
    "mul_add": _mul_add,
    "matvec": _matvec,
    "matvec_t": _matvec_t,
    "matvec_add": _matvec_add,
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "rms_norm_double_backward": _rms_norm_double_backward,
    "max_norm": _max_norm,
    "max_norm_backward": _max_norm_backward,
    "max_norm_double_backward": _max_norm_double_backward,
}


def _program(name: str) -> Callable[..., None]:
    """An operation whose results are sums of primitives: one launch (or two, for a long reduction) a result."""
    program = calculus.PROGRAMS[name]
    steps = []
    for terms in program.outputs.values():
        (call,) = calculus.calls(terms, set(program.inputs))
        steps.append((LAUNCHES[call.primitive], [program.inputs.index(o) for o in call.operands]))

    def run(idx: Any, m: int, *arrays: Any) -> None:
        for (launches, operands), out in zip(steps, arrays[len(program.inputs) :], strict=True):
            launches(idx, m, *[arrays[i] for i in operands], out)

    return run


LAUNCHES |= {name: _program(name) for name in calculus.PROGRAMS if name not in LAUNCHES}
