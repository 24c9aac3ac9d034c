# SPDX-License-Identifier: Apache-2.0
"""Operations in terms of others: the norms, beyond their fused derivatives, and every operation on a framework's own.

Everything here is written over an object A with the functions of a framework's arrays (`torch/_arrays.py`,
`jax/_arrays.py`) and an object P with the primitives, which take `(*operands, idx, m)`: a binding's own operations, or
`Plain`, the same on the framework's own. Formulas can be differentiated any number of times: at an empty or an all-zero
segment each division and square root sees a 1, so that every derivative there is 0, never NaN. Beyond first order data
are scaled by a power of two, which rounds nothing: neither squares nor inverse powers leave the range of their type. A
derivative takes what the forward kept as a constant, to scale or to pick by; what depends on x is computed again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from . import calculus
from .table import OPERATIONS, PRIMITIVES


def column(s: Any, like: Any) -> Any:
    """s with trailing dimensions of size one, to go with `like`."""
    return s.reshape(s.shape + (1,) * (like.ndim - s.ndim))


class Primitives:
    """The primitives by name, over the array functions A."""

    def __init__(self, A: Any, primitives: Mapping[str, Callable[..., Any]]) -> None:
        self.A = A
        self.__dict__.update(primitives)


class Plain:
    """The primitives as a framework's own operations. An element out of range meets no segment, whatever its data."""

    def __init__(self, A: Any) -> None:
        self.A = A

    def _inside(self, idx: Any, m: Any) -> tuple[Any, Any]:
        """Which elements have a segment, and a segment number for each that may be used as an address."""
        inside = (idx >= 0) & (idx < m)
        return inside, self.A.where(inside, idx, 0)

    def _masked(self, x: Any, idx: Any, m: Any) -> Any:
        return self.A.where(column(self._inside(idx, m)[0], x), x, self.A.zeros(x, x.shape))

    def sum(self, x: Any, idx: Any, m: Any) -> Any:
        return self.A.add_at(self._masked(x, idx, m), self._inside(idx, m)[1], m)

    def broadcast(self, y: Any, idx: Any, m: Any) -> Any:
        inside, safe = self._inside(idx, m)
        out = self.A.take(y, safe)
        return self.A.where(column(inside, out), out, self.A.zeros(out, out.shape))

    def _counts(self, like: Any, idx: Any, m: Any) -> Any:
        counts = self.sum(self.A.ones(like, idx.shape), idx, m)
        return column(self.A.maximum(counts, self.A.ones(counts, counts.shape)), like)

    def mean(self, x: Any, idx: Any, m: Any) -> Any:
        total = self.sum(x, idx, m)
        return total / self._counts(total, idx, m)

    def spread(self, y: Any, idx: Any, m: Any) -> Any:
        return self.broadcast(y / self._counts(y, idx, m), idx, m)

    def dot(self, x: Any, y: Any, idx: Any, m: Any) -> Any:
        # masked before the product: its derivative multiplies a zero by the data
        return self.sum(self.A.sum_columns(self._masked(x, idx, m) * self._masked(y, idx, m)), idx, m)

    def mul(self, x: Any, s: Any, idx: Any, m: Any) -> Any:
        return self._masked(x, idx, m) * column(self.broadcast(s, idx, m), x)

    def matvec(self, v: Any, a: Any, idx: Any, m: Any) -> Any:
        return (self._masked(v, idx, m)[:, :, None] * self.broadcast(a, idx, m)).sum(1)

    def matvec_t(self, w: Any, a: Any, idx: Any, m: Any) -> Any:
        return (self._masked(w, idx, m)[:, None, :] * self.broadcast(a, idx, m)).sum(2)

    def outer(self, v: Any, w: Any, idx: Any, m: Any) -> Any:
        return self.sum(self._masked(v, idx, m)[:, :, None] * self._masked(w, idx, m)[:, None, :], idx, m)

    def pick(self, x: Any, at: Any, idx: Any, m: Any) -> Any:
        if x.shape[0] == 0:
            return self.A.zeros(x, at.shape)
        row = self.A.take_along(x, self.A.where(at >= 0, at, 0))
        return self.A.where(at >= 0, row, self.A.zeros(row, row.shape))

    def place(self, y: Any, at: Any, idx: Any, m: Any) -> Any:
        masked = self.A.where(at >= 0, y, self.A.zeros(y, y.shape))
        return self.A.add_along(masked, self.A.where(at >= 0, at, 0), idx.shape[0])

    def extreme_at(self, x: Any, idx: Any, m: Any) -> Any:
        """Where the largest value of each segment is, by column: the first NaN, else the first of the largest."""
        A, n = self.A, idx.shape[0]
        x = A.constant(x)
        inside, safe = self._inside(idx, m)
        within = column(inside, x)
        nan = x != x
        lowest = A.zeros(x, x.shape) - A.inf
        key = A.where(within, A.where(nan, -lowest, x), lowest)  # an inf ties with a NaN
        poisoned = self.sum(A.where(nan, A.ones(x, x.shape), A.zeros(x, x.shape)), idx, m)
        largest = A.take(A.max_at(key, safe, m), safe)
        chosen = A.where(self.broadcast(poisoned, idx, m) > 0, nan, key == largest) & within
        position = A.where(chosen, column(A.arange(n, x), x), n)
        first = A.min_at(position, safe, m)
        return A.where((first < n) & (first >= 0), first, -1)


# ---------------------------------------------------------------------------------------------- norms
def _inverse(A: Any, x: Any) -> Any:
    nonzero, one = x != 0, A.ones(x, x.shape)  # a NaN stays a NaN
    return A.where(nonzero, one / A.where(nonzero, x, one), A.zeros(x, x.shape))


def _safe_sqrt(A: Any, x: Any) -> Any:
    nonzero = x != 0
    return A.where(nonzero, A.sqrt(A.where(nonzero, x, A.ones(x, x.shape))), A.zeros(x, x.shape))


def rms_norm(P: Any, x: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    """out and inv = 1 / (out count)."""
    square = P.dot(x, x, idx, m)
    count = P.A.maximum(P.sum(P.A.ones(square, idx.shape), idx, m), P.A.ones(square, square.shape))
    out = _safe_sqrt(P.A, square / count)
    return out, _inverse(P.A, out * count)


def _scaled(P: Any, x: Any, inv: Any, idx: Any, m: Any) -> tuple[Any, Any, Any, Any]:
    """x times a power of two for each segment, that power, and rms_norm's results for the scaled x."""
    scale = P.A.power_of_two(inv)
    y = P.mul(x, scale, idx, m)
    return (y, scale, *rms_norm(P, y, idx, m))


def rms_norm_backward(P: Any, g: Any, x: Any, inv: Any, idx: Any, m: Any) -> tuple[Any]:
    y, _, _, inv = _scaled(P, x, inv, idx, m)
    return (P.mul(y, g * inv, idx, m),)


def rms_norm_tangent(P: Any, v: Any, x: Any, inv: Any, idx: Any, m: Any) -> tuple[Any]:
    y, _, _, inv = _scaled(P, x, inv, idx, m)
    return (P.dot(v, y, idx, m) * inv,)


def rms_norm_double_backward(P: Any, v: Any, g: Any, x: Any, inv: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    y, scale, out, inv = _scaled(P, x, inv, idx, m)
    along = P.dot(v, y, idx, m) * inv
    normal = P.mul(y, _inverse(P.A, out), idx, m)
    return along, P.mul(v - P.mul(normal, along, idx, m), g * inv * scale, idx, m)


def _row(A: Any, x: Any, at: Any) -> Any:
    """x[at], 0 where `at` is -1."""
    if x.shape[0] == 0:
        return A.zeros(x, (at.shape[0], *x.shape[1:]))
    row = A.take(x, A.where(at >= 0, at, 0))
    return A.where(column(at >= 0, row), row, A.zeros(row, row.shape))


def _place_row(A: Any, row: Any, at: Any, like: Any) -> Any:
    """The transpose of `_row`."""
    if like.shape[0] == 0:
        return A.zeros(like, like.shape)
    masked = A.where(column(at >= 0, row), row, A.zeros(row, row.shape))
    return A.add_at(masked, A.where(at >= 0, at, 0), like.shape[0])


def max_norm(P: Any, x: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    """The norm of x[at], 0 where `at` is -1, and at."""
    at = Plain(P.A).extreme_at(P.A.sum_columns(x * x), idx, m)
    row = _row(P.A, x, at)
    return _safe_sqrt(P.A, P.A.sum_columns(row * row)), at


def _scaled_row(A: Any, x: Any, at: Any) -> tuple[Any, Any, Any]:
    """The row at the maximum times a power of two, that power, and 1 / the norm of the scaled row."""
    row = _row(A, x, at)
    scale = A.power_of_two(_inverse(A, A.sum_columns(abs(row))))
    row = row * column(scale, row)
    return row, scale, _inverse(A, _safe_sqrt(A, A.sum_columns(row * row)))


def max_norm_backward(P: Any, g: Any, x: Any, at: Any, idx: Any, m: Any) -> tuple[Any]:
    row, _, inverse = _scaled_row(P.A, x, at)
    return (_place_row(P.A, row * column(g * inverse, row), at, x),)


def max_norm_tangent(P: Any, v: Any, x: Any, at: Any, idx: Any, m: Any) -> tuple[Any]:
    row, _, inverse = _scaled_row(P.A, x, at)
    return (P.A.sum_columns(row * column(inverse, row) * _row(P.A, v, at)),)


def max_norm_double_backward(P: Any, v: Any, g: Any, x: Any, at: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    direction = _row(P.A, v, at)
    row, scale, inverse = _scaled_row(P.A, x, at)
    normal = row * column(inverse, row)
    along = P.A.sum_columns(normal * direction)
    across = direction - normal * column(along, row)
    return along, _place_row(P.A, across * column(g * inverse * scale, row), at, x)


# ---------------------------------------------------------------------------------------------- selections
def _selection(sign: int) -> Callable[..., tuple[Any, Any]]:
    def formula(P: Any, x: Any, idx: Any, m: Any) -> tuple[Any, Any]:
        at = Plain(P.A).extreme_at(sign * x, idx, m)
        return P.pick(x, at, idx, m), at

    return formula


FORMULAS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "rms_norm": rms_norm,
    "rms_norm_backward": rms_norm_backward,
    "rms_norm_double_backward": rms_norm_double_backward,
    "max_norm": max_norm,
    "max_norm_backward": max_norm_backward,
    "max_norm_double_backward": max_norm_double_backward,
    "rms_norm_tangent": rms_norm_tangent,  # no operations: only differentiated
    "max_norm_tangent": max_norm_tangent,
    "max": _selection(1),
    "min": _selection(-1),
}
assert FORMULAS.keys() | calculus.PROGRAMS.keys() >= OPERATIONS.keys()


def plain(A: Any) -> Primitives:
    """The primitives on a framework's own operations."""
    return Primitives(A, {name: getattr(Plain(A), name) for name in PRIMITIVES})


def apply(P: Any, idx: Any, m: Any) -> Callable[..., Any]:
    """Runs an operation of P by name; a sum of two, as two."""

    def run(name: str, *operands: Any) -> Any:
        single = name.removesuffix("_add")
        if single == name:
            return getattr(P, name)(*operands, idx, m)
        half = len(operands) // 2
        return run(single, *operands[:half]) + run(single, *operands[half:])

    return run


def composed(name: str, P: Any, operands: tuple[Any, ...], idx: Any, m: Any) -> tuple[Any, ...]:
    """The results of operation `name` over P: in the widest type that the framework has, to be rounded once."""
    wide = [P.A.widen(o) for o in operands]
    if name in FORMULAS:
        return FORMULAS[name](P, *wide, idx, m)
    program = calculus.PROGRAMS[name]
    values = dict(zip(program.inputs, wide, strict=True))
    return tuple(
        calculus.evaluate(terms, values, apply(P, idx, m), operator.add) for terms in program.outputs.values()
    )
