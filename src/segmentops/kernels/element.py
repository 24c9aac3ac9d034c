# SPDX-License-Identifier: Apache-2.0
"""Element-wise operations: one value per element and column, from its data and what its segment has.

A thread makes one scalar; neighbouring threads read neighbouring scalars. Arithmetic is in float64,
rounded once. An element whose segment is outside [0, m) gets 0, also where its data is NaN.
"""

from typing import Any

import warp as wp

from ._registry import KEPT, family
from ._rule import add_scalar, decoded, load, rounded, total
from .reduce import row_square

A = wp.array2d(dtype=Any)
D = wp.array(dtype=wp.float64)
L = wp.array(dtype=wp.int32)


# x, y: of elements; p, q: of segments; wide, counts: a float64 and an int32 a segment.
# i, k: element and column; s: its segment.
@wp.func
def broadcast(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    return load(p, s, k)


@wp.func
def spread(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    v = wp.float64(0.0)
    if counts[s] != 0:
        v = load(p, s, k) / wp.float64(counts[s])
    return v


@wp.func
def add(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    return load(x, i, k) + load(p, s, k)


@wp.func
def component_sum(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    v = wp.float64(0.0)
    for d in range(x.shape[1]):
        v = v + load(x, i, d)
    return v


@wp.func
def copy(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    return load(x, i, k)


@wp.func
def scale_twice(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    """The gradient of rms_norm: p is the gradient that arrives, q is inv_norm."""
    return load(x, i, k) * (load(p, s, 0) * decoded(load(q, s, 0)))


@wp.func
def norm_second(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    """The second order of rms_norm (x is the cotangent, y the data): products in the order that stays in range."""
    inv = decoded(load(q, s, 0))
    return (load(p, s, 0) * inv) * (load(x, i, k) - (wide[s] * inv) * ((wp.float64(counts[s]) * inv) * load(y, i, k)))


@wp.func
def norm(x: A, i: int):
    return wp.sqrt(row_square(x, i))


@wp.func
def along(x: A, y: A, i: int, length: wp.float64):
    """<x / ||x||, y>"""
    hi = wp.float64(0.0)
    lo = wp.float64(0.0)
    for d in range(x.shape[1]):
        hi, lo = add_scalar(hi, lo, load(x, i, d) / length * load(y, i, d), x.shape[1])
    return total(hi, lo)


@wp.func
def max_first(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    v = wp.float64(0.0)
    if counts[s] == i:
        length = norm(x, i)
        if length != wp.float64(0.0):
            v = load(p, s, 0) * (load(x, i, k) / length)
    return v


@wp.func
def max_second(x: A, y: A, p: A, q: A, wide: D, counts: L, i: int, k: int, s: int):
    v = wp.float64(0.0)
    if counts[s] == i:
        length = norm(x, i)
        if length != wp.float64(0.0):
            v = load(p, s, 0) / length * (load(y, i, k) - load(x, i, k) / length * along(x, y, i, length))
    return v


TERMS: dict[str, Any] = {
    f.key: f for f in (broadcast, spread, add, component_sum, copy, scale_twice, norm_second, max_first, max_second)
}


def _map(term: Any, Rows: Any, S: Any, I: Any) -> Any:  # noqa: E741
    Kept = wp.array2d(dtype=KEPT[S])

    def map(idx: wp.array(dtype=I), m: int, x: Rows, y: Rows, p: Rows, q: Kept, wide: D, counts: L, out: Rows):
        i, k = wp.tid()
        s = idx[i]
        v = wp.float64(0.0)
        if s >= I(0) and s < I(m):
            v = term(x, y, p, q, wide, counts, i, k, int(s))
        out[i, k] = rounded(v, S(0.0))

    return map


@family(["element"])
def element(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    """out[i, k] = a term; linear: a combination; matvec: a product with the segment's matrix."""
    Rows = wp.array2d(dtype=S)
    Matrices = wp.array3d(dtype=S)
    compensated = 1 if S is wp.float64 else 0  # sums of float32 lose nothing in float64

    def linear(
        idx: wp.array(dtype=I), m: int, base: Rows, x: Rows, p: Rows, y: Rows, q: Rows, twice: int,
        u: Rows, r: Rows, w: Rows, t: Rows, out: Rows,
    ):  # fmt: skip
        """base + x p + y q + u r + w t, without what is absent; base alone where there is no segment."""
        i, k = wp.tid()
        s = idx[i]
        v = wp.float64(0.0)
        if s >= I(0) and s < I(m):
            e = int(s)
            v = load(x, i, k) * load(p, e, k)
            if base.shape[0] > 0:
                v = load(base, i, k) + v
            if y.shape[0] > 0:
                c = load(y, i, k) * load(q, e, k)
                if twice == 1:
                    c = wp.float64(2.0) * c
                v = v + c
            if u.shape[0] > 0:
                v = v + load(u, i, k) * load(r, e, k)
                v = v + load(w, i, k) * load(t, e, k)
        elif base.shape[0] > 0:
            v = load(base, i, k)
        out[i, k] = rounded(v, S(0.0))

    @wp.func
    def product(x: Rows, p: Matrices, i: int, s: int, j: int):
        hi = wp.float64(0.0)
        lo = wp.float64(0.0)
        for k in range(x.shape[1]):
            hi, lo = add_scalar(hi, lo, wp.float64(p[s, k, j]) * load(x, i, k), compensated * x.shape[1])
        return total(hi, lo)

    def matvec(idx: wp.array(dtype=I), m: int, x: Rows, p: Matrices, y: Rows, q: Matrices, out: Rows):
        """p[s]^T x[i], plus q[s]^T y[i] unless these are absent; over k in ascending order, float64 by TwoSum."""
        i, j = wp.tid()
        s = idx[i]
        v = wp.float64(0.0)
        if s >= I(0) and s < I(m):
            v = product(x, p, i, int(s), j)
            if y.shape[0] > 0:
                v = v + product(y, q, i, int(s), j)
        out[i, j] = rounded(v, S(0.0))

    terms = {name: _map(term, Rows, S, I) for name, term in TERMS.items()}
    return {**terms, "linear": linear, "matvec": matvec}
