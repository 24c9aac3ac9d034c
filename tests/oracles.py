# SPDX-License-Identifier: Apache-2.0
"""The ops in NumPy, written out from their definitions, and the table that the tests run over.

No framework is imported here, and nothing of the library: an oracle that shared code with it would agree
with its mistakes. Every oracle returns a value and a scale. The value is a float64 sum that `math.fsum`
rounds once; the scale is the sum of the absolute terms, which bounds the error of any good sum. An element
whose segment number lies outside [0, m) belongs to no segment.

A new op enters every test by a row in `OPS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Width = tuple[int, ...]
WIDTHS: tuple[Width, ...] = ((), (1,), (2,), (3,), (4,), (9,), (2, 3))
MATRICES: tuple[Width, ...] = ((3, 3), (2, 3), (4, 5))


# ------------------------------------------------------------------ reductions over one segment
def reduce_terms(terms, idx, m):
    """Sum and sum of absolute values of the rows of `terms` in each segment: two arrays (m, *F)."""
    terms = np.asarray(terms, dtype=np.float64)
    value = np.zeros((m, *terms.shape[1:]))
    scale = np.zeros_like(value)
    for s in range(m):
        rows = terms[idx == s]
        for column in np.ndindex(terms.shape[1:]):
            value[(s, *column)] = _fsum(rows[(slice(None), *column)])
            scale[(s, *column)] = _fsum(np.abs(rows[(slice(None), *column)]))
    return value, scale


def _fsum(terms):
    terms = terms.tolist()
    return math.fsum(terms) if all(map(math.isfinite, terms)) else float(sum(terms))


def flat_terms(products, idx, m):
    """Like `reduce_terms`, with the scalars of an element counted as terms of one sum: two arrays (m,)."""
    products = np.asarray(products, dtype=np.float64)
    k = math.prod(products.shape[1:])
    return reduce_terms(products.reshape(products.shape[0] * k), np.repeat(idx, k), m)


def counts(idx, m):
    return np.array([np.count_nonzero(idx == s) for s in range(m)], dtype=np.float64).reshape(m)


def gather(y, idx):
    """y[idx], with zeros where idx is out of range."""
    inside = (idx >= 0) & (idx < y.shape[0])
    out = np.zeros((idx.shape[0], *y.shape[1:]))
    out[inside] = y[idx[inside]]
    return out, inside


def positions(idx, m, row, seed=0):
    """For each segment, and each scalar of a row of this shape, one of the segment's elements; -1 for an empty one."""
    rng = np.random.default_rng(seed)
    found = np.full((m, *row), -1)
    for s in set(idx.tolist()) & set(range(m)):
        found[s] = rng.choice(np.flatnonzero(idx == s), row)
    return found


# ------------------------------------------------------------------ the ops
def segmented_sum(x, idx, m):
    return reduce_terms(x, idx, m)


def segmented_mean(x, idx, m):
    value, scale = reduce_terms(x, idx, m)
    count = np.maximum(counts(idx, m), 1).reshape((m,) + (1,) * (value.ndim - 1))
    return value / count, scale / count


def segmented_dot(x, y, idx, m):
    return flat_terms(_f64(x) * _f64(y), idx, m)


def segmented_rms_norm(x, idx, m):
    value = np.sqrt(flat_terms(_f64(x) ** 2, idx, m)[0] / np.maximum(counts(idx, m), 1))
    return value, value


def segmented_max_norm(x, idx, m):
    squares = _f64(x).reshape(x.shape[0], math.prod(x.shape[1:])) ** 2
    norms = np.sqrt([_fsum(row) for row in squares])
    value = np.array([norms[idx == s].max(initial=0.0) for s in range(m)]).reshape(m)
    return value, value


def segmented_max(x, idx, m):
    return _extreme(x, idx, m, np.max)


def segmented_min(x, idx, m):
    return _extreme(x, idx, m, np.min)


def _extreme(x, idx, m, extreme):
    value = np.zeros((m, *x.shape[1:]))
    for s in set(idx.tolist()) & set(range(m)):
        value[s] = extreme(_f64(x)[idx == s], axis=0)
    return value, np.abs(value)


def segmented_mul(x, y, idx, m):
    x, (s, inside) = _f64(x), gather(_f64(y), idx)
    value = np.zeros(x.shape)
    value[inside] = x[inside] * s[inside].reshape((-1,) + (1,) * (x.ndim - 1))
    return value, np.abs(value)


def segmented_matvec(v, m, idx, num_segments):
    v, (matrix, inside) = _f64(v), gather(_f64(m), idx)
    terms = np.zeros(matrix.shape)
    terms[inside] = v[inside][:, :, None] * matrix[inside]
    return terms.sum(1), np.abs(terms).sum(1)


def _f64(a):
    return np.asarray(a, dtype=np.float64)


# ------------------------------------------------------------------ their gradients, of rows of one dimension
# (*arrays, g, idx, m), idx in range -> for each array its gradient and the sum of the magnitudes of its terms.
def _single(function):
    """Of a gradient that is no sum."""
    return lambda *args: [(value, np.abs(value)) for value in function(*map(np.asarray, args[:-1]), args[-1])]


def _share(idx, m):
    return np.maximum(counts(idx, m), 1)[idx, None]


def _rms_norm_gradient(x, g, idx, m):
    norm = segmented_rms_norm(x, idx, m)[0]
    return [x * (g / np.where(norm > 0, norm, 1))[idx, None] / _share(idx, m)]


def _largest(key, idx):
    """For each column of `key` and each segment that has elements: the position of the largest, the first of equals."""
    for s in sorted(set(idx.tolist())):
        rows = np.flatnonzero(idx == s)
        for c in range(key.shape[1]):
            yield s, c, rows[key[rows, c].argmax()]


def _max_norm_gradient(x, g, idx, m):
    norm, found = np.sqrt((_f64(x) ** 2).sum(1)), np.zeros(x.shape)
    for s, _, i in _largest(norm[:, None], idx):
        found[i] = x[i] / norm[i] * g[s]
    return [found]


def _extreme_gradient(sign):
    def gradient(x, g, idx, m):
        found = np.zeros(x.shape)
        for s, c, i in _largest(sign * _f64(x), idx):
            found[i, c] = g[s, c]
        return [found]

    return _single(gradient)


def _mul_gradient(x, y, g, idx, m):
    gx = g * y[idx, None]
    return [(gx, np.abs(gx)), flat_terms(g * x, idx, m)]


def _matvec_gradient(v, m, g, idx, num_segments):
    terms = g[:, None, :] * m[idx]
    gm = reduce_terms(v[:, :, None] * g[:, None, :], idx, num_segments)
    return [(terms.sum(2), np.abs(terms).sum(2)), gm]


# ------------------------------------------------------------------ the table
@dataclass(frozen=True)
class Array:
    """An argument or a result. kind: one row an 'element' or a 'segment'; row: its shape, by width."""

    name: str
    kind: str
    row: Callable[[Width], Width]

    def shape(self, n: int, m: int, width: Width) -> Width:
        return (n if self.kind == "element" else m, *self.row(width))


@dataclass(frozen=True)
class Op:
    """An op: its array arguments in order, before idx and num_segments. All of them are differentiable."""

    name: str
    args: tuple[Array, ...]
    out: Array
    oracle: Callable
    gradient: Callable
    widths: tuple[Width, ...] = WIDTHS
    linear: bool = True  # in each argument; then no value of an argument is special for a derivative
    twin: bool = False  # the code is that of another op: `make test-rest` has its cases

    @property
    def short(self) -> str:
        return self.name.removeprefix("segmented_")

    @property
    def matrices(self) -> bool:
        return self.widths is MATRICES

    @property
    def kink(self) -> bool:
        """A norm: 0, with derivatives 0 by definition, where all data is 0."""
        return not self.linear and self.out is NUMBER

    @property
    def selects(self) -> bool:
        """An element of each column: no other element is seen in the result."""
        return not self.linear and not self.kink

    def width(self, *sizes: int) -> Width:
        """A width of these sizes, or of the first one if rows have one dimension."""
        return tuple(sizes if self.matrices else sizes[:1])

    @property
    def reduces(self) -> bool:
        return self.out.kind == "segment"


def _whole(width):
    return width


def _scalar(width):
    return ()


def _rows(width):
    return width[:1]


def _columns(width):
    return width[1:]


X = Array("x", "element", _whole)
POOLED = Array("out", "segment", _whole)
NUMBER = Array("out", "segment", _scalar)

OPS: tuple[Op, ...] = (
    Op("segmented_sum", (X,), POOLED, segmented_sum, _single(lambda x, g, idx, m: [g[idx]])),
    Op("segmented_mean", (X,), POOLED, segmented_mean, _single(lambda x, g, idx, m: [g[idx] / _share(idx, m)])),
    Op(
        "segmented_dot", (X, Array("y", "element", _whole)), NUMBER, segmented_dot,
        _single(lambda x, y, g, idx, m: [y * g[idx, None], x * g[idx, None]]),
    ),
    Op("segmented_rms_norm", (X,), NUMBER, segmented_rms_norm, _single(_rms_norm_gradient), linear=False),
    Op("segmented_max_norm", (X,), NUMBER, segmented_max_norm, _single(_max_norm_gradient), linear=False),
    Op("segmented_max", (X,), POOLED, segmented_max, _extreme_gradient(1), linear=False),
    Op("segmented_min", (X,), POOLED, segmented_min, _extreme_gradient(-1), linear=False, twin=True),
    Op(
        "segmented_mul", (X, Array("y", "segment", _scalar)), Array("out", "element", _whole), segmented_mul,
        _mul_gradient,
    ),
    Op(
        "segmented_matvec",
        (Array("v", "element", _rows), Array("m", "segment", _whole)),
        Array("out", "element", _columns),
        segmented_matvec,
        _matvec_gradient,
        widths=MATRICES,
    ),
)  # fmt: skip


# ------------------------------------------------------------------ exact arithmetic
def split_products(a, b):
    """Two float64 arrays whose sum is exactly a * b, barring overflow and underflow (Dekker's product)."""
    a, b = np.broadcast_arrays(_f64(a), _f64(b))
    p = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _halves(a):
    c = a * 134217729.0  # 2**27 + 1
    high = c - (c - a)
    return high, a - high


def excess(out, terms, divisor=1):
    """|out * divisor - sum(terms)|, exactly rounded once; `terms` are float64 and finite."""
    if divisor == 1:
        return abs(math.fsum([*terms, -float(out)]))
    p, e = split_products(float(out), float(divisor))
    return abs(math.fsum([*terms, -float(p), -float(e)]))
