# SPDX-License-Identifier: Apache-2.0
"""Operations as compositions: on XLA's own ops, and over other operations beyond the fused orders."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..ops import calculus, formulas
from ..ops.calculus import PROGRAMS
from ..ops.table import OPERATIONS, PRIMITIVES
from ._arguments import dtype_of, narrow, position_dtype


class Namespace:
    """What the formulas of `segmentops.ops` need beyond the primitives."""

    where = staticmethod(jnp.where)
    sqrt = staticmethod(jnp.sqrt)
    maximum = staticmethod(jnp.maximum)
    ones_like = staticmethod(jnp.ones_like)
    zeros_like = staticmethod(jnp.zeros_like)
    absolute = staticmethod(jnp.abs)

    def __init__(self, primitives: dict[str, Any]) -> None:
        self.__dict__.update(primitives)

    def count(self, idx: Any, m: int, like: Any) -> Any:
        return self.sum(jnp.ones_like(like, shape=idx.shape), idx, m)  # type: ignore[attr-defined]

    @staticmethod
    def power_of_two(a: Any) -> Any:
        """The exponent of |a|, with no derivative; 1 where that is no normal number."""
        a = jax.lax.stop_gradient(a)
        power = a / jnp.frexp(a)[0]
        return jnp.where((power != 0) & jnp.isfinite(power), power, jnp.ones_like(a))

    @staticmethod
    def sum_columns(x: Any) -> Any:
        return x.sum(tuple(range(1, x.ndim)))

    @staticmethod
    def column(s: Any, like: Any) -> Any:
        return s.reshape(s.shape + (1,) * (like.ndim - s.ndim))

    @classmethod
    def pick(cls, x: Any, at: Any) -> Any:
        """x[at], 0 where `at` is -1."""
        if x.shape[0] == 0:
            return jnp.zeros_like(x, shape=(at.shape[0], *x.shape[1:]))
        row = x[jnp.maximum(at, 0)]
        return jnp.where(cls.column(at >= 0, row), row, 0)

    @classmethod
    def place(cls, row: Any, at: Any, like: Any) -> Any:
        """The transpose of `pick`."""
        return jnp.zeros_like(like).at[jnp.where(at >= 0, at, like.shape[0])].add(row, mode="drop")


class Xla:
    """The primitives as XLA's own ops. An element out of range meets no segment, whatever its data."""

    @staticmethod
    def _segments(idx: Any, m: int) -> tuple[Any, Any]:
        inside = (idx >= 0) & (idx < m)
        return inside, jnp.where(inside, idx, m)

    @classmethod
    def _masked(cls, x: Any, idx: Any, m: int) -> Any:
        return jnp.where(Namespace.column(cls._segments(idx, m)[0], x), x, 0)

    @classmethod
    def sum(cls, x: Any, idx: Any, m: int) -> Any:
        return jax.ops.segment_sum(cls._masked(x, idx, m), cls._segments(idx, m)[1], m, mode="drop")

    @classmethod
    def broadcast(cls, y: Any, idx: Any, m: int) -> Any:
        if y.shape[0] == 0:
            return jnp.zeros_like(y, shape=(idx.shape[0], *y.shape[1:]))
        return y.at[cls._segments(idx, m)[1]].get(mode="fill", fill_value=0)

    @classmethod
    def _counts(cls, like: Any, idx: Any, m: int) -> Any:
        return Namespace.column(jnp.maximum(cls.sum(jnp.ones_like(like, shape=idx.shape), idx, m), 1), like)

    @classmethod
    def mean(cls, x: Any, idx: Any, m: int) -> Any:
        total = cls.sum(x, idx, m)
        return total / cls._counts(total, idx, m)

    @classmethod
    def spread(cls, y: Any, idx: Any, m: int) -> Any:
        return cls.broadcast(y / cls._counts(y, idx, m), idx, m)

    @classmethod
    def dot(cls, x: Any, y: Any, idx: Any, m: int) -> Any:
        return cls.sum(Namespace.sum_columns(x * y), idx, m)

    @classmethod
    def mul(cls, x: Any, s: Any, idx: Any, m: int) -> Any:
        return cls._masked(x, idx, m) * Namespace.column(cls.broadcast(s, idx, m), x)

    @classmethod
    def matvec(cls, v: Any, a: Any, idx: Any, m: int) -> Any:
        return (cls._masked(v, idx, m)[:, :, None] * cls.broadcast(a, idx, m)).sum(1)

    @classmethod
    def matvec_t(cls, w: Any, a: Any, idx: Any, m: int) -> Any:
        return (cls._masked(w, idx, m)[:, None, :] * cls.broadcast(a, idx, m)).sum(2)

    @classmethod
    def outer(cls, v: Any, w: Any, idx: Any, m: int) -> Any:
        return cls.sum(v[:, :, None] * w[:, None, :], idx, m)

    @classmethod
    def max_norm_at(cls, x: Any, idx: Any, m: int) -> Any:
        """Where the largest norm of each segment is: the first NaN, else the first of the largest."""
        n = x.shape[0]
        inside, segment = cls._segments(idx, m)
        square = Namespace.sum_columns(x * x)
        key = jnp.where(inside, jnp.where(jnp.isnan(square), jnp.inf, square), -1)  # an inf ties with a NaN
        largest = jax.ops.segment_max(key, segment, m, mode="drop")
        poisoned = cls.sum(jnp.isnan(square).astype(x.dtype), idx, m) > 0
        chosen = jnp.where(cls.broadcast(poisoned, idx, m), jnp.isnan(square), key == cls.broadcast(largest, idx, m))
        position = jnp.arange(n, dtype=position_dtype(n))
        first = jax.ops.segment_min(jnp.where(chosen & inside, position, n), segment, m, mode="drop")
        return jnp.where((first < n) & (first >= 0), first, -1).astype(position_dtype(n))


XLA = Namespace({name: getattr(Xla, name) for name in PRIMITIVES})


def composed(name: str, P: Any, tensors: tuple[Any, ...], idx: Any, m: int) -> list[Any]:
    """The results of operation `name` over the namespace P; in float64 where JAX has it, rounded once."""
    dtype, n = tensors[0].dtype, idx.shape[0]
    outs = wide(name, P, tensors, idx, m)
    return [in_dtype(o, dtype_of(r, dtype, n)) for o, r in zip(outs, OPERATIONS[name].results, strict=True)]


def wide(name: str, P: Any, tensors: tuple[Any, ...], idx: Any, m: int) -> list[Any]:
    """The same, not rounded; `name` may be one of `formulas` that is no operation."""
    if tensors[0].dtype == jnp.float64 and not jax.config.jax_enable_x64:  # made where it was enabled
        with jax.enable_x64(True):
            return wide(name, P, tensors, idx, m)
    idx = narrow(idx)
    operands = [t.astype(_widest()) if jnp.issubdtype(t.dtype, jnp.floating) else t for t in tensors]
    if name in PROGRAMS:
        program = PROGRAMS[name]
        values = dict(zip(program.inputs, operands, strict=True))
        return [calculus.evaluate(terms, values, _apply(P, idx, m), jnp.add) for terms in program.outputs.values()]
    if name == "rms_norm":
        return list(formulas.rms_norm(P, operands[0], idx, m))
    if name == "max_norm":
        at = Xla.max_norm_at(operands[0], idx, m)
        return [formulas.max_norm(P, operands[0], at), at]
    found = getattr(formulas, name)(P, *operands, idx, m)  # a derivative of a norm
    return list(found) if isinstance(found, tuple) else [found]


def in_dtype(array: Any, dtype: Any) -> Any:
    """Asked for float64, JAX would give float32 without x64."""
    return array if array.dtype == dtype else array.astype(dtype)


def _widest() -> Any:
    return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32


def _apply(P: Any, idx: Any, m: int) -> Any:
    def apply(primitive: str, *operands: Any) -> Any:
        if primitive.endswith("_add"):
            half, run = len(operands) // 2, getattr(P, primitive[: -len("_add")])
            return run(*operands[:half], idx, m) + run(*operands[half:], idx, m)
        return getattr(P, primitive)(*operands, idx, m)

    return apply
