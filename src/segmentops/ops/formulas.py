# SPDX-License-Identifier: Apache-2.0
"""The norms, over a namespace P of operations.

P has the primitives, where, sqrt, absolute, maximum, ones_like, zeros_like, count(idx, m, like), power_of_two(a), a
constant near a, and for rows at positions pick, place, sum_columns and column. The formulas can be differentiated any
number of times: at an empty or an all-zero segment each division and square root sees a 1, so that every derivative
there is 0, never NaN. Beyond first order data are scaled by a power of two, which rounds nothing: neither squares nor
inverse powers leave the range of their type. A derivative takes what the forward kept as a constant, to scale or to
pick by; what depends on x is computed again.
"""

from __future__ import annotations

from typing import Any


def _inverse(P: Any, x: Any, one: Any) -> Any:
    nonzero = x != 0  # a NaN stays a NaN
    return P.where(nonzero, one / P.where(nonzero, x, one), P.zeros_like(x))


def _safe_sqrt(P: Any, x: Any) -> Any:
    nonzero = x != 0
    return P.where(nonzero, P.sqrt(P.where(nonzero, x, P.ones_like(x))), P.zeros_like(x))


def rms_norm(P: Any, x: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    """out and inv = 1 / (out count)."""
    square = P.dot(x, x, idx, m)
    count = P.maximum(P.count(idx, m, square), P.ones_like(square))
    out = _safe_sqrt(P, square / count)
    return out, _inverse(P, out * count, P.ones_like(out))


def rms_norm_backward(P: Any, g: Any, x: Any, inv: Any, idx: Any, m: Any) -> Any:
    y = P.mul(x, P.power_of_two(inv), idx, m)
    return P.mul(y, g * rms_norm(P, y, idx, m)[1], idx, m)


def rms_norm_tangent(P: Any, v: Any, x: Any, inv: Any, idx: Any, m: Any) -> Any:
    y = P.mul(x, P.power_of_two(inv), idx, m)
    return P.dot(v, y, idx, m) * rms_norm(P, y, idx, m)[1]


def rms_norm_double_backward(P: Any, v: Any, g: Any, x: Any, inv: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    scale = P.power_of_two(inv)
    y = P.mul(x, scale, idx, m)
    out, inv = rms_norm(P, y, idx, m)
    along = P.dot(v, y, idx, m) * inv
    normal = P.mul(y, _inverse(P, out, P.ones_like(out)), idx, m)
    return along, P.mul(v - P.mul(normal, along, idx, m), g * inv * scale, idx, m)


def max_norm(P: Any, x: Any, at: Any) -> Any:
    """‖x[at]‖, 0 where `at` is -1."""
    row = P.pick(x, at)
    return _safe_sqrt(P, P.sum_columns(row * row))


def _scaled_row(P: Any, x: Any, at: Any) -> tuple[Any, Any, Any]:
    """The row at the maximum times a power of two, that power, and 1 / the norm of the scaled row."""
    row = P.pick(x, at)
    size = P.sum_columns(P.absolute(row))
    scale = P.power_of_two(_inverse(P, size, P.ones_like(size)))
    row = row * P.column(scale, row)
    norm = _safe_sqrt(P, P.sum_columns(row * row))
    return row, scale, _inverse(P, norm, P.ones_like(norm))


def max_norm_backward(P: Any, g: Any, x: Any, at: Any, idx: Any, m: Any) -> Any:
    row, _, inverse = _scaled_row(P, x, at)
    return P.place(row * P.column(g * inverse, row), at, x)


def max_norm_tangent(P: Any, v: Any, x: Any, at: Any, idx: Any, m: Any) -> Any:
    row, _, inverse = _scaled_row(P, x, at)
    return P.sum_columns(row * P.column(inverse, row) * P.pick(v, at))


def max_norm_double_backward(P: Any, v: Any, g: Any, x: Any, at: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    direction = P.pick(v, at)
    row, scale, inverse = _scaled_row(P, x, at)
    normal = row * P.column(inverse, row)
    along = P.sum_columns(normal * direction)
    across = direction - normal * P.column(along, row)
    return along, P.place(across * P.column(g * inverse * scale, row), at, x)
