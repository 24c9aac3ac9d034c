# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  tables
"""All launchers with their interface, their meaning in NumPy, and how to call them.

`INTERFACE` is the published interface, written out here so that a changed library cannot agree with
itself. `ORACLES` says what each launcher writes, in float64. An element outside [0, M) belongs to no segment.
"""

import contextlib
import inspect

import ml_dtypes
import numpy as np
import warp as wp

from segmentops import warp as segment_ops
from segmentops import warp_backward as segment_ops_backward
from segmentops.kernels import dispatch, launch

# name: arguments as name:type with the types of warp_api: T, V, S, H, W (a vector of H), R (a scalar of H), A (3 x 3
# matrices), i (int32); K is S, but float32 for half types. Capital type letters in n-arrays first: `x:T` is one an element, `y:S*` one a segment.
INTERFACE = {
    "segmented_sum": "x:T idx out:T*",
    "segmented_component_sum": "x:V idx out:S*",
    "segmented_dot": "x:T y:T idx out:S*",
    "segmented_inner_products": "x:T y:T idx out_xy:S* out_xx:S* out_yy:S*",
    "segmented_count": "idx out:i*",
    "segmented_mean": "x:T idx sums:T* counts:i* out:T*",
    "segmented_rms_norm": "x:V idx sum_sq:S* counts:i* out:S*",
    "segmented_max_norm": "x:V idx out:S*",
    "segmented_max": "x:S idx out:S*",
    "segmented_min": "x:S idx out:S*",
    "segmented_broadcast": "values:H* idx out:H",
    "segmented_mul": "x:H y:R* idx out:H",
    "segmented_add": "x:H y:H* idx out:H",
    "segmented_axpy": "y:H x:H a:R* idx",
    "segmented_axpby": "out:H a:R* x:H b:R* y:H idx",
    "segmented_matvec": "v:W m:A* idx out:W",
    "segment_div": "numerator:S* denominator:i* result:S*",
    "segmented_sum_backward": "g_out:T* idx grad_x:T",
    "segmented_sum_double_backward": "gg_x:T idx M grad_g_out:T*",
    "segmented_broadcast_backward": "g_out:T idx M grad_values:T*",
    "segmented_broadcast_double_backward": "gg_values:T* idx grad_g_out:T",
    "segmented_component_sum_backward": "g_out:S* idx grad_x:V",
    "segmented_component_sum_double_backward": "gg_x:V idx M grad_g_out:S*",
    "segmented_add_backward": "g_out:T idx M grad_x:T grad_y:T*",
    "segmented_add_double_backward": "gg_x:T gg_y:T* idx grad_g_out:T",
    "segmented_mul_backward": "g_out:T x:T y:S* idx M grad_x:T grad_y:S*",
    "segmented_mul_double_backward": "gg_gx:T gg_gy:S* g_out:T x:T y:S* idx grad_g_out:T grad_x_extra:T grad_y_extra:S*",
    "segmented_dot_backward": "g_out:S* x:T y:T idx grad_x:T grad_y:T",
    "segmented_dot_double_backward": (
        "gg_gx:T gg_gy:T g_out:S* x:T y:T idx M grad_g_out:S* grad_x_extra:T grad_y_extra:T"
    ),
    "segmented_inner_products_backward": "x:T y:T idx g_xy:S* g_xx:S* g_yy:S* grad_x:T grad_y:T",
    "segmented_inner_products_double_backward": (
        "gg_gx:T gg_gy:T x:T y:T g_xy:S* g_xx:S* g_yy:S* idx M "
        "grad_x_extra:T grad_y_extra:T grad_g_xy_extra:S* grad_g_xx_extra:S* grad_g_yy_extra:S*"
    ),
    "segmented_axpy_backward": "g_out:T x:T a:S* idx M grad_y_in:T grad_x:T grad_a:S*",
    "segmented_axpy_double_backward": (
        "gg_gy_in:T gg_gx:T gg_ga:S* g_out:T x:T a:S* idx grad_g_out:T grad_x_extra:T grad_a_extra:S*"
    ),
    "segmented_axpby_backward": "g_out:T a:S* x:T b:S* y:T idx M grad_x:T grad_y:T grad_a:S* grad_b:S*",
    "segmented_axpby_double_backward": (
        "gg_gx:T gg_gy:T gg_ga:S* gg_gb:S* g_out:T a:S* x:T b:S* y:T idx "
        "grad_g_out:T grad_x_extra:T grad_y_extra:T grad_a_extra:S* grad_b_extra:S*"
    ),
    "segmented_mean_backward": "g_out:T* counts:i* idx grad_x:T",
    "segmented_mean_double_backward": "gg_x:T counts:i* idx grad_g_out:T*",
    "segmented_rms_norm_forward_precompute": "x:V idx sum_sq:S* counts:i* out:S* inv_norm:K*",
    "segmented_rms_norm_backward": "g_out:S* x:V inv_norm:K* idx grad_x:V",
    "segmented_rms_norm_double_backward": (
        "gg_x:V x:V g_out:S* inv_norm:K* counts:i* idx M grad_x_extra:V grad_g_out_extra:S*"
    ),
    "segmented_max_norm_forward_precompute": "x:V idx out:S* argmax_idx:i*",
    "segmented_max_norm_backward": "g_out:S* x:V argmax_idx:i* idx grad_x:V",
    "segmented_max_norm_double_backward": "gg_gx:V g_out:S* x:V argmax_idx:i* idx grad_x_extra:V grad_g_out:S*",
    "segmented_matvec_backward": "g_out:V v:V m:A* idx grad_v:V grad_M:A*",
    "segmented_matvec_double_backward": "gg_gv:V gg_gM:A* g_out:V v:V m:A* idx grad_g_out:V grad_v_extra:V grad_M_extra:A*",
    "segment_div_backward": "g_result:S* denominator:i* grad_numerator:S*",
    "segment_div_double_backward": "gg_numerator:S* denominator:i* grad_g_result:S*",
}


# They want a sorted idx.
REDUCING = """
    segmented_sum segmented_component_sum segmented_dot segmented_inner_products segmented_count segmented_mean
    segmented_rms_norm segmented_max_norm segmented_max segmented_min segmented_sum_double_backward
    segmented_broadcast_backward segmented_component_sum_double_backward segmented_add_backward segmented_mul_backward
    segmented_mul_double_backward segmented_dot_double_backward segmented_inner_products_double_backward
    segmented_axpy_backward segmented_axpy_double_backward segmented_axpby_backward segmented_axpby_double_backward
    segmented_mean_double_backward segmented_rms_norm_forward_precompute segmented_rms_norm_double_backward
    segmented_max_norm_forward_precompute segmented_matvec_backward segmented_matvec_double_backward
""".split()


def arguments(name):
    """(argument, type, dimension) in order; idx and M have no type."""
    found = []
    for text in INTERFACE[name].split():
        argument, _, kind = text.partition(":")
        found.append((argument, kind.rstrip("*") or None, "m" if kind.endswith("*") or argument == "M" else "n"))
    return found


def launcher(name):
    return getattr(segment_ops, name, None) or getattr(segment_ops_backward, name)


def widths(name):
    """1 and 3 where a launcher takes scalars and vectors."""
    kinds = {kind for _, kind, _ in arguments(name)}
    return (1, 3) if kinds & {"T", "H"} else (1,) if "V" not in kinds and "W" not in kinds else (3,)


# ------------------------------------------------------------------ meaning
class Segments:
    """The primitives in NumPy float64. Element arrays are (N, K), segment arrays (M, K) or (M,)."""

    def __init__(self, idx, m):
        self.idx, self.m = idx, m
        self.inside = (idx >= 0) & (idx < m)
        self.at = idx[self.inside]
        self.count = np.bincount(self.at, minlength=m).astype(np.float64)

    def sum(self, x):
        out = np.zeros((self.m, *x.shape[1:]))
        np.add.at(out, self.at, x[self.inside])
        return out

    def dot(self, x, y):
        return self.sum((np.where(self.inside[:, None], x, 0) * np.where(self.inside[:, None], y, 0)).sum(1))

    def broadcast(self, y, fill=0.0):
        out = np.full((len(self.idx), *y.shape[1:]), fill)
        out[self.inside] = y[self.at]
        return out

    def mul(self, x, s):
        return self.mask(x) * self.broadcast(s)[:, None]

    def mask(self, x):
        return np.where(self.inside[:, None], x, 0.0)

    def mean(self, x):
        return self.sum(x) / np.maximum(self.count, 1)[:, None]

    def matvec(self, v, a):
        return np.einsum("nkj,nk->nj", self.broadcast(a.reshape(-1, 3, 3)), self.mask(v))

    def matvec_t(self, g, a):
        return np.einsum("nkj,nj->nk", self.broadcast(a.reshape(-1, 3, 3)), self.mask(g))

    def outer(self, v, w):
        return self.sum(np.einsum("nk,nj->nkj", self.mask(v), self.mask(w))).reshape(-1, 9)

    def argmax(self, x):
        at = np.full(self.m, -1)
        squares = (x * x).sum(1)
        for i in np.flatnonzero(self.inside):
            s = self.idx[i]
            best = squares[at[s]] if at[s] >= 0 else -np.inf
            if squares[i] > best or np.isnan(squares[i]) and not np.isnan(best):
                at[s] = i
        return at

    def place(self, values, at):
        """values (M, K) at the elements `at`."""
        out = np.zeros((len(self.idx), values.shape[1]))
        out[at[at >= 0]] = values[at >= 0]
        return out


def _rms(s, x):
    total = s.dot(x, x)
    out = np.sqrt(total / np.maximum(s.count, 1))
    inv = np.divide(1, out * s.count, out=np.zeros_like(out), where=out != 0)
    return {"sum_sq": total, "counts": s.count, "out": out, "inv_norm": inv}


def _normal(x, at):
    """x / ||x|| and ||x|| at the elements `at`, 0 where there is none or it has no length."""
    row = np.where(at[:, None] >= 0, x[at], 0.0) if len(x) else np.zeros((len(at), x.shape[1]))
    length = np.sqrt((row * row).sum(1))
    inverse = np.divide(1, length, out=np.zeros_like(length), where=length != 0)
    return row * inverse[:, None], inverse


def _column(v):
    return v[:, None]


def _extreme(reduce, s, x, out):
    out = out.copy()
    reduce.at(out, s.at, x[s.inside])
    return {"out": out}


def _max_double(s, gg_gx, g_out, x, argmax_idx):
    n, inverse = _normal(x, argmax_idx)
    gg = np.where(argmax_idx[:, None] >= 0, gg_gx[argmax_idx], 0.0) if len(x) else 0 * n
    along = (n * gg).sum(1)
    return {
        "grad_g_out": along,
        "grad_x_extra": s.place(_column(g_out * inverse) * (gg - n * _column(along)), argmax_idx),
    }


def _fit(x, k):
    """Summed to one column if k is 1."""
    return x.sum(1, keepdims=True) if k == 1 else x


def _divide(p, c):
    return np.divide(p, c, out=np.zeros_like(p), where=c != 0)


# Arrays of scalars come as (.,) for S and R, as (., K) for everything else.
ORACLES = {
    "segmented_sum": lambda s, x: {"out": s.sum(x)},
    "segmented_component_sum": lambda s, x: {"out": s.sum(x.sum(1))},
    "segmented_dot": lambda s, x, y: {"out": s.dot(x, y)},
    "segmented_inner_products": lambda s, x, y: {"out_xy": s.dot(x, y), "out_xx": s.dot(x, x), "out_yy": s.dot(y, y)},
    "segmented_count": lambda s: {"out": s.count},
    "segmented_mean": lambda s, x: {"sums": s.sum(x), "counts": s.count, "out": s.mean(x)},
    "segmented_rms_norm": lambda s, x: {k: v for k, v in _rms(s, x).items() if k != "inv_norm"},
    "segmented_max_norm": lambda s, x: {"out": np.where((at := s.argmax(x)) >= 0, np.sqrt((x * x).sum(1))[at], 0) if len(x) else np.zeros(s.m)},
    "segmented_max": lambda s, x, out: _extreme(np.maximum, s, x, out),
    "segmented_min": lambda s, x, out: _extreme(np.minimum, s, x, out),
    "segmented_broadcast": lambda s, values: {"out": s.broadcast(values)},
    "segmented_mul": lambda s, x, y: {"out": s.mul(x, y)},
    "segmented_add": lambda s, x, y: {"out": s.mask(x + s.broadcast(y))},
    "segmented_axpy": lambda s, y, x, a: {"y": y + s.mul(x, a)},
    "segmented_axpby": lambda s, a, x, b, y: {"out": s.mul(x, a) + s.mul(y, b)},
    "segmented_matvec": lambda s, v, m: {"out": s.matvec(v, m)},
    "segment_div": lambda s, numerator, denominator: {"result": _divide(numerator, denominator)},
    "segmented_sum_backward": lambda s, g_out: {"grad_x": s.broadcast(g_out)},
    "segmented_sum_double_backward": lambda s, gg_x: {"grad_g_out": s.sum(gg_x)},
    "segmented_broadcast_backward": lambda s, g_out: {"grad_values": s.sum(g_out)},
    "segmented_broadcast_double_backward": lambda s, gg_values: {"grad_g_out": s.broadcast(gg_values)},
    "segmented_component_sum_backward": lambda s, g_out: {"grad_x": np.repeat(_column(s.broadcast(g_out)), 3, 1)},
    "segmented_component_sum_double_backward": lambda s, gg_x: {"grad_g_out": s.sum(gg_x.sum(1))},
    "segmented_add_backward": lambda s, g_out: {"grad_x": s.mask(g_out), "grad_y": s.sum(g_out)},
    "segmented_add_double_backward": lambda s, gg_x, gg_y: {"grad_g_out": s.mask(gg_x + s.broadcast(gg_y))},
    "segmented_mul_backward": lambda s, g_out, x, y: {"grad_x": s.mul(g_out, y), "grad_y": s.dot(g_out, x)},
    "segmented_mul_double_backward": lambda s, gg_gx, gg_gy, g_out, x, y: {
        "grad_g_out": s.mul(gg_gx, y) + s.mul(x, gg_gy),
        "grad_x_extra": s.mul(g_out, gg_gy),
        "grad_y_extra": s.dot(gg_gx, g_out),
    },
    "segmented_dot_backward": lambda s, g_out, x, y: {"grad_x": s.mul(y, g_out), "grad_y": s.mul(x, g_out)},
    "segmented_dot_double_backward": lambda s, gg_gx, gg_gy, g_out, x, y: {
        "grad_g_out": s.dot(gg_gx, y) + s.dot(gg_gy, x),
        "grad_x_extra": s.mul(gg_gy, g_out),
        "grad_y_extra": s.mul(gg_gx, g_out),
    },
    "segmented_inner_products_backward": lambda s, x, y, g_xy, g_xx, g_yy: {
        "grad_x": s.mul(y, g_xy) + 2 * s.mul(x, g_xx),
        "grad_y": s.mul(x, g_xy) + 2 * s.mul(y, g_yy),
    },
    "segmented_inner_products_double_backward": lambda s, gg_gx, gg_gy, x, y, g_xy, g_xx, g_yy: {
        "grad_x_extra": s.mul(gg_gy, g_xy) + 2 * s.mul(gg_gx, g_xx),
        "grad_y_extra": s.mul(gg_gx, g_xy) + 2 * s.mul(gg_gy, g_yy),
        "grad_g_xy_extra": s.dot(gg_gx, y) + s.dot(gg_gy, x),
        "grad_g_xx_extra": 2 * s.dot(gg_gx, x),
        "grad_g_yy_extra": 2 * s.dot(gg_gy, y),
    },
    "segmented_axpy_backward": lambda s, g_out, x, a: {
        "grad_y_in": g_out, "grad_x": s.mul(g_out, a), "grad_a": s.dot(g_out, x),
    },
    "segmented_axpy_double_backward": lambda s, gg_gy_in, gg_gx, gg_ga, g_out, x, a: {
        "grad_g_out": gg_gy_in + s.mul(gg_gx, a) + s.mul(x, gg_ga),
        "grad_x_extra": s.mul(g_out, gg_ga),
        "grad_a_extra": s.dot(gg_gx, g_out),
    },
    "segmented_axpby_backward": lambda s, g_out, a, x, b, y: {
        "grad_x": s.mul(g_out, a), "grad_y": s.mul(g_out, b), "grad_a": s.dot(g_out, x), "grad_b": s.dot(g_out, y),
    },
    "segmented_axpby_double_backward": lambda s, gg_gx, gg_gy, gg_ga, gg_gb, g_out, a, x, b, y: {
        "grad_g_out": s.mul(gg_gx, a) + s.mul(gg_gy, b) + s.mul(x, gg_ga) + s.mul(y, gg_gb),
        "grad_x_extra": s.mul(g_out, gg_ga),
        "grad_y_extra": s.mul(g_out, gg_gb),
        "grad_a_extra": s.dot(gg_gx, g_out),
        "grad_b_extra": s.dot(gg_gy, g_out),
    },
    "segmented_mean_backward": lambda s, g_out, counts: {"grad_x": s.broadcast(g_out / np.maximum(counts, 1)[:, None])},
    "segmented_mean_double_backward": lambda s, gg_x, counts: {"grad_g_out": s.mean(gg_x)},
    "segmented_rms_norm_forward_precompute": _rms,
    "segmented_rms_norm_backward": lambda s, g_out, x, inv_norm: {"grad_x": s.mul(x, g_out * inv_norm)},
    "segmented_rms_norm_double_backward": lambda s, gg_x, x, g_out, inv_norm, counts: {
        "grad_g_out_extra": s.dot(gg_x, x) * inv_norm,
        "grad_x_extra": s.mul(gg_x, g_out * inv_norm) - s.mul(x, g_out * inv_norm**3 * counts * s.dot(gg_x, x)),
    },
    "segmented_max_norm_forward_precompute": lambda s, x: {
        **ORACLES["segmented_max_norm"](s, x), "argmax_idx": s.argmax(x),
    },
    "segmented_max_norm_backward": lambda s, g_out, x, argmax_idx: {
        "grad_x": s.place(_column(g_out) * _normal(x, argmax_idx)[0], argmax_idx)
    },
    "segmented_max_norm_double_backward": _max_double,
    "segmented_matvec_backward": lambda s, g_out, v, m: {"grad_v": s.matvec_t(g_out, m), "grad_M": s.outer(v, g_out)},
    "segmented_matvec_double_backward": lambda s, gg_gv, gg_gM, g_out, v, m: {
        "grad_g_out": s.matvec(gg_gv, m) + s.matvec(v, gg_gM),
        "grad_v_extra": s.matvec_t(g_out, gg_gM),
        "grad_M_extra": s.outer(gg_gv, g_out),
    },
    "segment_div_backward": lambda s, g_result, denominator: {"grad_numerator": _divide(g_result, denominator)},
    "segment_div_double_backward": lambda s, gg_numerator, denominator: {"grad_g_result": _divide(gg_numerator, denominator)},
}  # fmt: skip


# ------------------------------------------------------------------ calls
BFLOAT16 = ml_dtypes.bfloat16
DTYPES = {
    (BFLOAT16, 1): wp.bfloat16,
    (BFLOAT16, 3): wp.types.vector(length=3, dtype=wp.bfloat16),
    (BFLOAT16, 9): wp.types.matrix(shape=(3, 3), dtype=wp.bfloat16),
    (np.float16, 1): wp.float16, (np.float16, 3): wp.vec3h, (np.float16, 9): wp.mat33h,
    (np.float32, 1): wp.float32, (np.float32, 3): wp.vec3f, (np.float32, 9): wp.mat33f,
    (np.float64, 1): wp.float64, (np.float64, 3): wp.vec3d, (np.float64, 9): wp.mat33d,
}  # fmt: skip
POISON = 7.0


def width_of(kind, width):
    return {"S": 1, "R": 1, "K": 1, "V": 3, "W": 3, "A": 9}.get(kind, width)


def kept(scalar):
    """What by-products are kept in."""
    return scalar if scalar in BOTH else np.float32


def inputs_of(name):
    """The arguments that an oracle takes, in order."""
    return list(inspect.signature(ORACLES[name]).parameters)[1:]


def make_inputs(name, idx, m, width, scalar, seed=0):
    """Random arrays for the inputs of a launcher, rounded to the scalar type: (., K), or (.,) for S, R and int32."""
    rng = np.random.default_rng(seed)
    values = {}
    segments = Segments(idx, m)
    for argument, kind, dimension in arguments(name):
        if argument not in inputs_of(name):
            continue
        length = len(idx) if dimension == "n" else m
        if kind == "i":
            continue
        shape = (length,) if kind in "SRK" else (length, width_of(kind, width))
        values[argument] = rng.uniform(-2, 2, shape).astype(scalar).astype(np.float64)
    # What the forward operation leaves for the backward ones must fit the data.
    for argument in inputs_of(name):
        if argument in ("counts", "denominator"):
            values[argument] = segments.count
        elif argument == "inv_norm":
            values[argument] = _rms(segments, values["x"])["inv_norm"].astype(kept(scalar)).astype(np.float64)
        elif argument == "argmax_idx":
            values[argument] = segments.argmax(values["x"])
    return values


def to_warp(values, kind, scalar, strided=False):
    """A Warp array; strided: every second entry of a larger one."""
    if kind == "i":
        data, dtype = np.asarray(values).astype(np.int32), wp.int32
    else:
        scalar = kept(scalar) if kind == "K" else scalar
        data = np.asarray(values).astype(scalar)
        dtype = DTYPES[scalar, data.shape[1] if data.ndim > 1 else 1]
    n = len(data)
    if data.ndim > 1:
        k = data.shape[1]
        data = data.reshape((n,) if k == 1 else (n, 3, 3) if k == 9 else (n, k))
    if not strided or not n:
        return wp.array(data, dtype=dtype, device="cpu") if n else wp.empty(0, dtype=dtype, device="cpu")
    wide = np.full((2 * n + 1, *data.shape[1:]), POISON, dtype=data.dtype)
    wide[1::2] = data
    return wp.array(wide, dtype=dtype, device="cpu")[1::2]


def from_warp(array):
    """(n,) or (n, K) in NumPy."""
    data = array.numpy()
    return data.reshape(len(data), int(np.prod(data.shape[1:]))) if data.ndim > 1 else data


def call(name, values, idx, m, width, scalar, strided=False, out_widths=None, device_arrays=None):
    """Run a launcher on poisoned outputs; everything that it wrote, and its inputs afterwards."""
    made = {}
    order = []
    for argument, kind, dimension in arguments(name):
        if argument == "M":
            order.append(m)
            continue
        if argument == "idx":
            array = to_warp(idx, "i", scalar, strided)
        elif argument in values:
            array = to_warp(values[argument], kind, scalar, strided)
        else:
            length = len(idx) if dimension == "n" else m
            k = (out_widths or {}).get(argument, width_of(kind, width))
            array = to_warp(np.full((length,) if kind in "SRKi" else (length, k), POISON), kind, scalar, strided)
        made[argument] = array
        order.append(array)
    if device_arrays is not None:
        device_arrays.update(made)
    launcher(name)(*order)
    return {argument: from_warp(array) for argument, array in made.items()}


@contextlib.contextmanager
def route(name):
    """engine: the native engine; kernels: Warp kernels; fibers: the CUDA kernels with their thread blocks."""
    before = dispatch.use_engine, launch.cooperative_on_cpu, wp.config.enable_cpu_blocks
    dispatch.use_engine = name == "engine"
    launch.cooperative_on_cpu = wp.config.enable_cpu_blocks = name == "fibers"
    try:
        yield
    finally:
        dispatch.use_engine, launch.cooperative_on_cpu, wp.config.enable_cpu_blocks = before


LENGTHS = {
    "few": (40, 6),
    "empty": (40, 120),
    "one": (200, 1),
    "singletons": (97, 97),
}


def sorted_idx(n, m, seed=0):
    return np.sort(np.random.default_rng(seed).integers(0, max(m, 1), n)).astype(np.int32)


def close(got, expected, scalar, scale=1.0):
    """Within a few roundings; the terms of these tests are of order one."""
    eps = np.finfo(scalar).eps
    expected = np.asarray(expected, dtype=np.float64).reshape(np.shape(got))
    np.testing.assert_allclose(got, expected, rtol=8 * eps, atol=64 * eps * scale)


BOTH = [np.float32, np.float64]
HALVES = [np.float16, BFLOAT16]


def rounded_once(got, exact, scalar):
    """Within half a unit in the last place of what float64 gives."""
    info = ml_dtypes.finfo(scalar)
    got, exact = np.asarray(got, np.float64), np.reshape(exact, np.shape(got))
    bound = float(info.eps) / 2 * np.abs(exact) + float(info.smallest_subnormal) / 2 + 1e-12
    assert (np.abs(got - exact) <= bound).all(), (got, exact)


def lengths(*counts):
    return np.repeat(np.arange(len(counts)), counts).astype(np.int32)


def same_bits(name, idx, m, width, scalar, ways, seed=0, strided=(False, False)):
    values = make_inputs(name, idx, m, width, scalar, seed)
    rng = np.random.default_rng(seed)
    for argument in values:  # magnitudes that make the order of additions visible
        if argument not in ("counts", "denominator", "argmax_idx", "inv_norm"):
            values[argument] *= 10.0 ** rng.integers(-4, 5, values[argument].shape)
            values[argument] = values[argument].astype(scalar).astype(np.float64)
    results = []
    for way, apart in zip(ways, strided, strict=True):
        with route(way):
            results.append(call(name, values, idx, m, width, scalar, strided=apart))
    for argument, got in results[0].items():
        np.testing.assert_array_equal(got, results[1][argument], err_msg=f"{name} {argument} width {width}")
        np.testing.assert_array_equal(np.signbit(got), np.signbit(results[1][argument]), err_msg=name)
