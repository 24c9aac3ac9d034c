# SPDX-License-Identifier: Apache-2.0
"""Calling the native functions on NumPy arrays, with guard zones around every output, and what they should give.

`OPS` lists every function once: the shapes of its inputs and outputs, and its definition in NumPy. A new function gets
the whole battery by being listed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest

from segmentops import native
from segmentops.native._strided import STRIDED, strided

FULL = {"f32": np.float32, "f64": np.float64}
HALF = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
DTYPES = FULL | HALF
GUARD = 16
exact = np.longdouble
LIBC = ctypes.CDLL(None, use_errno=True)
slow = pytest.mark.skipif("NVALCHEMIOPS_TEST_SLOW" not in os.environ, reason="slow: NVALCHEMIOPS_TEST_SLOW=1")


@dataclass(frozen=True)
class Op:
    inputs: dict[str, str]
    outputs: dict[str, str]
    define: Callable[..., dict[str, np.ndarray]]
    order: str  # of the arrays in the call
    matrix: bool = False
    optional: frozenset[str] = field(default_factory=frozenset)
    scratch: dict[str, str] = field(default_factory=dict)
    reduces: bool = True


def eps(dtype):
    return float((ml_dtypes if dtype is ml_dtypes.bfloat16 else np).finfo(dtype).eps)


def rounded(x, dtype):
    """float64 to the nearest number of a half type, ties to even."""
    x = np.asarray(x, np.float64)
    if dtype is not np.float16:
        e = np.maximum(np.frexp(x)[1], -125) - 8  # of the last of eight bits; the smallest number is 2**-133
        x = np.ldexp(np.rint(np.ldexp(x, -e)), e)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def inside(idx, m):
    return (idx >= 0) & (idx < m)


def add_up(idx, m, terms):
    out = np.zeros((m, *terms.shape[1:]), exact)
    ok = inside(idx, m)
    np.add.at(out, idx[ok], terms[ok])
    return out


def take(idx, y):
    out = np.zeros((len(idx), *y.shape[1:]), exact)
    ok = inside(idx, len(y))
    out[ok] = y[idx[ok]]
    return out


def hold(idx, m, values):
    """0 where the element has no segment, also where its data is NaN."""
    return np.where(inside(idx, m).reshape(-1, *[1] * (values.ndim - 1)), values, 0)


def sizes(idx, m):
    return np.bincount(idx[inside(idx, m)], minlength=m)[:m]


def over(a, b):
    b = np.broadcast_to(b, a.shape)
    return np.divide(a, b, out=np.zeros(a.shape, exact), where=b != 0)


def d_sum(idx, m, x):
    return {"out": add_up(idx, m, x)}


def d_mean(idx, m, x):
    s, c = add_up(idx, m, x), sizes(idx, m)
    return {"out": over(s, c[:, None]), "sums": s, "counts": c}


def d_broadcast(idx, m, y):
    return {"out": take(idx, y)}


def d_spread(idx, m, y):
    return {"out": take(idx, over(y, sizes(idx, m)[:, None]))}


def d_dot(idx, m, x, y):
    return {"out": add_up(idx, m, (x * y).sum(1))}


def d_mul(idx, m, x, s):
    return {"out": hold(idx, m, x * take(idx, s)[:, None])}


def d_rms_norm(idx, m, x):
    s, c = add_up(idx, m, (x * x).sum(1)), sizes(idx, m)
    out = np.sqrt(over(s, c))
    return {"out": out, "inv": over(np.ones(m, exact), out * c), "sum_sq": s, "counts": c}


def d_rms_norm_backward(idx, m, g, x, inv):
    return {"gx": hold(idx, m, x * take(idx, g * inv)[:, None])}


def d_mul_backward(idx, m, g, x, s):
    return {"gx": d_mul(idx, m, g, s)["out"], "gs": d_dot(idx, m, g, x)["out"]}


def d_dot_add(idx, m, x, y, u, w):
    return {"out": add_up(idx, m, (x * y + u * w).sum(1))}


def d_mul_add(idx, m, x, s, y, t):
    return {"out": hold(idx, m, x * take(idx, s)[:, None] + y * take(idx, t)[:, None])}


def d_rms_second(idx, m, v, g, x, inv):
    inner, c = d_dot(idx, m, v, x)["out"], sizes(idx, m)
    gx = take(idx, g * inv)[:, None] * (v - take(idx, inner * inv)[:, None] * (take(idx, c * inv)[:, None] * x))
    return {"gg": inner * inv, "gx": hold(idx, m, gx)}


def d_max_norm(idx, m, x):
    out, at = np.zeros(m, exact), np.full(m, -1)
    squares = np.zeros(len(x), np.float64)
    for q in range(x.shape[1]):
        squares += x[:, q].astype(np.float64) ** 2
    for i in np.flatnonzero(inside(idx, m)):
        s, q = idx[i], squares[i]
        if at[s] < 0 or q > squares[at[s]] or (np.isnan(q) and not np.isnan(squares[at[s]])):
            at[s], out[s] = i, np.sqrt(q)
    return {"out": out, "at": at}


def d_matvec(idx, m, v, a):
    return {"out": hold(idx, m, np.einsum("nkj,nk->nj", take(idx, a), v))}


def d_matvec_t(idx, m, w, a):
    return {"out": hold(idx, m, np.einsum("nkj,nj->nk", take(idx, a), w))}


def d_matvec_add(idx, m, v, a, w, b):
    return {"out": d_matvec(idx, m, v, a)["out"] + d_matvec(idx, m, w, b)["out"]}


def d_outer(idx, m, v, w):
    return {"out": add_up(idx, m, np.einsum("nk,nj->nkj", v, w))}


def d_dot_backward(idx, m, g, x, y):
    return {"gx": d_mul(idx, m, y, g)["out"], "gy": d_mul(idx, m, x, g)["out"]}


def d_matvec_backward(idx, m, g, v, a):
    return {"gv": d_matvec_t(idx, m, g, a)["out"], "ga": d_outer(idx, m, v, g)["out"]}


def d_mul_second(idx, m, ggx, ggs, g, x, s):
    return {
        "gg": d_mul_add(idx, m, ggx, s, x, ggs)["out"],
        "gx": d_mul(idx, m, g, ggs)["out"],
        "gs": d_dot(idx, m, g, ggx)["out"],
    }


def d_dot_second(idx, m, ggx, ggy, g, x, y):
    return {
        "gg": d_dot_add(idx, m, ggx, y, x, ggy)["out"],
        "gx": d_mul(idx, m, ggy, g)["out"],
        "gy": d_mul(idx, m, ggx, g)["out"],
    }


def d_matvec_second(idx, m, ggv, gga, g, v, a):
    return {
        "gg": d_matvec_add(idx, m, ggv, a, v, gga)["out"],
        "gv": d_matvec_t(idx, m, g, gga)["out"],
        "ga": d_outer(idx, m, ggv, g)["out"],
    }


def op(inputs, outputs, define, order, *, optional="", scratch="", **rest):
    def pairs(text):
        return dict(item.split(":") for item in text.split())

    return Op(pairs(inputs), pairs(outputs), define, order, optional=frozenset(optional.split()),
              scratch=pairs(scratch), **rest)  # fmt: skip


# name:shape, the shape as in interface of the headers: n elements, m segments, k and j columns. A type may follow.
OPS = {
    "sum": op("x:nk", "out:mk", d_sum, "x idx out"),
    "mean": op("x:nk", "out:mk sums:mk counts:m/i4", d_mean, "x idx out sums counts", optional="sums counts"),
    "broadcast": op("y:mk", "out:nk", d_broadcast, "y idx out", reduces=False),
    "spread": op("y:mk", "out:nk", d_spread, "y idx out scratch", scratch="scratch:mk"),
    "dot": op("x:nk y:nk", "out:m", d_dot, "x y idx out"),
    "mul": op("x:nk s:m", "out:nk", d_mul, "x s idx out", reduces=False),
    "rms_norm": op("x:nk", "out:m inv:m/kept sum_sq:m counts:m/i4", d_rms_norm, "x idx out inv sum_sq counts",
                   optional="inv sum_sq counts"),
    "rms_norm_backward": op("g:m x:nk inv:m/kept", "gx:nk", d_rms_norm_backward, "g x inv idx gx", reduces=False),
    "mul_backward": op("g:nk x:nk s:m", "gx:nk gs:m", d_mul_backward, "g x s idx gx gs", optional="gx gs"),
    "dot_add": op("x:nk y:nk u:nk w:nk", "out:m", d_dot_add, "x y u w idx out"),
    "mul_add": op("x:nk s:m y:nk t:m", "out:nk", d_mul_add, "x s y t idx out", reduces=False),
    "rms_norm_double_backward": op("v:nk g:m x:nk inv:m/kept", "gg:m gx:nk", d_rms_second,
                                   "v g x inv idx gg gx inner counts", scratch="inner:m/f8 counts:m/i4"),
    "max_norm": op("x:nk", "out:m at:m/at", d_max_norm, "x idx out at"),
    "matvec": op("v:nk a:mkj", "out:nj", d_matvec, "v a idx out", matrix=True, reduces=False),
    "matvec_t": op("w:nj a:mkj", "out:nk", d_matvec_t, "w a idx out", matrix=True, reduces=False),
    "matvec_add": op("v:nk a:mkj w:nk b:mkj", "out:nj", d_matvec_add, "v a w b idx out", matrix=True, reduces=False),
    "outer": op("v:nk w:nj", "out:mkj", d_outer, "v w idx out", matrix=True),
    "dot_backward": op("g:m x:nk y:nk", "gx:nk gy:nk", d_dot_backward, "g x y idx gx gy", optional="gx gy",
                       reduces=False),
    "matvec_backward": op("g:nj v:nk a:mkj", "gv:nk ga:mkj", d_matvec_backward, "g v a idx gv ga",
                          matrix=True, optional="gv ga"),
    "mul_double_backward": op("ggx:nk ggs:m g:nk x:nk s:m", "gg:nk gx:nk gs:m", d_mul_second,
                              "ggx ggs g x s idx gg gx gs", optional="gg gx gs"),
    "dot_double_backward": op("ggx:nk ggy:nk g:m x:nk y:nk", "gg:m gx:nk gy:nk", d_dot_second,
                              "ggx ggy g x y idx gg gx gy", optional="gg gx gy"),
    "matvec_double_backward": op("ggv:nk gga:mkj g:nj v:nk a:mkj", "gg:nj gv:nk ga:mkj", d_matvec_second,
                                 "ggv gga g v a idx gg gv ga", matrix=True, optional="gg gv ga"),
}  # fmt: skip


# These give or take positions of elements (test_maxima says what they should give).
MAXIMA = {
    "max_norm_backward": op("g:m x:nk at:m/at", "gx:nk", None, "g x at idx gx", reduces=False),
    "max_norm_double_backward": op("v:nk g:m x:nk at:m/at", "gg:m gx:nk", None, "v g x at idx gg gx", reduces=False),
    "max": op("x:nk", "out:mk at:mk/at", None, "x idx out at"),
    "min": op("x:nk", "out:mk at:mk/at", None, "x idx out at"),
    "pick": op("x:nk at:mk/at", "out:mk", None, "x at idx out", reduces=False),
    "place": op("y:mk at:mk/at", "out:nk", None, "y at idx out", reduces=False),
}


def shape(spec, n, m, k, j):
    return tuple({"n": n, "m": m, "k": k, "j": j}[c] for c in spec.split("/")[0])


def kind(spec, dtype, narrow_at):
    name = spec.partition("/")[2]
    kept = np.float32 if dtype in HALF.values() else dtype  # no by-product is in half precision
    return {"": dtype, "i4": np.int32, "f8": np.float64, "at": np.int32 if narrow_at else np.int64, "kept": kept}[name]


def mode_of(idx, threads=1, check=False, narrow_at=False):
    return int(idx.dtype == np.int64) | 2 * check | 4 * narrow_at | threads << 8


def guarded(size, dtype, poison=0xA5):
    """Poison, with a guard zone before and after; returns the whole and the middle."""
    whole = np.empty(size + 2 * GUARD, dtype)
    whole.view(np.uint8)[:] = poison
    return whole, whole[GUARD : GUARD + size]


def at_the_edge(array):
    """A copy that ends where its page ends, before one that may not be touched."""
    page = mmap.PAGESIZE
    pages = -(-max(array.nbytes, 1) // page)
    area = np.frombuffer(mmap.mmap(-1, (pages + 1) * page), np.uint8)
    edge = ctypes.c_void_p(area.ctypes.data + pages * page)
    if LIBC.mprotect(edge, page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = area[pages * page - array.nbytes : pages * page].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def make_inputs(name, dtype, n, m, k, j, seed=0):
    g = np.random.default_rng(seed)
    if name == "rms_norm_double_backward":  # its factors are sums: without cancellation they are exact to the last bits
        draw = lambda shape: g.uniform(0.5, 1.5, shape)  # noqa: E731
    else:
        draw = g.standard_normal
    inputs = OPS[name].inputs.items()
    return {key: np.asarray(draw(shape(spec, n, m, k, j)), kind(spec, dtype, False)) for key, spec in inputs}


def call(
    name, inputs, idx, m, k, j=1, *,
    threads=1, check=False, narrow_at=False, want=None, place=None, layout=None, poison=0xA5,
):  # fmt: skip
    """Outputs by name. `want`: which of the optional outputs, default all; `place`: makes the copies to be passed.

    `layout` makes an array with strides of an operand; then these are passed, too.
    """
    o = (OPS | MAXIMA)[name]
    dtype = next(iter(inputs.values())).dtype.type
    n = len(idx)
    suffix = next(suffix for suffix, t in DTYPES.items() if t is dtype)
    place = place or (lambda array: array)
    arrays = {key: place(np.ascontiguousarray(x)) for key, x in {"idx": idx, **inputs}.items()}
    apart = {}
    for key, spec in o.inputs.items():
        if layout and "/" not in spec:  # no by-product
            arrays[key] = layout(inputs[key], place)
            strides = [step // arrays[key].itemsize for step in arrays[key].strides]
            apart[key] = strided(arrays[key].ctypes.data, arrays[key].shape, strides)
    outs, wholes = {}, {}
    for key, spec in {**o.outputs, **o.scratch}.items():
        if key in o.optional and want is not None and key not in want:
            continue
        s = shape(spec, n, m, k, j)
        wholes[key], middle = guarded(int(np.prod(s)), kind(spec, dtype, narrow_at), poison)
        arrays[key] = place(middle)
        outs[key] = arrays[key].reshape(s)
    at = {key: array.ctypes.data for key, array in arrays.items()}
    at |= {key: ctypes.addressof(operand) for key, operand in apart.items()}
    addresses = [at.get(key) for key in o.order.split()]
    dims = [n, m, k, j] if o.matrix else [n, m, k]
    mode = mode_of(idx, threads, check, narrow_at) | STRIDED * bool(layout)
    verdict = getattr(native.load(), f"{name}_{suffix}")(*addresses, *dims, mode)
    for key, whole in wholes.items():
        ends = np.concatenate([whole[:GUARD], whole[len(whole) - GUARD :]])
        assert (ends.view(np.uint8) == poison).all(), f"{name} wrote outside {key}"
    if check:
        return verdict, outs
    assert verdict == -1
    return {key: value for key, value in outs.items() if key in o.outputs}


def expected(name, inputs, idx, m):
    idx = idx.astype(np.int64)
    with np.errstate(all="ignore"):
        return OPS[name].define(idx, m, **{key: x.astype(exact) for key, x in inputs.items()})


def sorted_idx(lengths, gaps=None, wide=False):
    """Segments of these lengths; gaps[s] empty ones before each. Returns idx and the segment of each length."""
    where = np.cumsum(np.asarray(gaps if gaps is not None else [0] * len(lengths)) + 1) - 1
    return np.repeat(where, lengths).astype(np.int64 if wide else np.int32), where


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
