# SPDX-License-Identifier: Apache-2.0
"""JAX's functions of arrays, as the formulas of `ops` take them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._arguments import position_dtype

inf = jnp.inf
where = jnp.where
sqrt = jnp.sqrt
maximum = jnp.maximum


def widen(x: Any) -> Any:
    """Data in float64 where JAX has it."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return x.astype(jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)


def constant(x: Any) -> Any:
    return jax.lax.stop_gradient(x)


def power_of_two(x: Any) -> Any:
    """The exponent of |x|, with no derivative; 1 where that is not a normal number."""
    x = constant(x)
    power = x / jnp.frexp(x)[0]
    return jnp.where((power != 0) & jnp.isfinite(power), power, jnp.ones_like(x))


def ones(like: Any, shape: Any) -> Any:
    return jnp.ones_like(like, shape=shape)


def zeros(like: Any, shape: Any) -> Any:
    return jnp.zeros_like(like, shape=shape)


def arange(n: Any, like: Any) -> Any:
    return jnp.arange(n, dtype=position_dtype(n))


def sum_columns(x: Any) -> Any:
    return x.sum(tuple(range(1, x.ndim)))


def take(x: Any, at: Any) -> Any:
    """Rows of x; zeros where it has none."""
    if x.shape[0] == 0:
        return jnp.zeros_like(x, shape=(at.shape[0], *x.shape[1:]))
    return x.at[at].get(mode="fill", fill_value=0)


def add_at(x: Any, at: Any, m: Any) -> Any:
    """Rows of x added to m rows."""
    return jax.ops.segment_sum(x, at, m, mode="drop")


def take_along(x: Any, at: Any) -> Any:
    return jnp.take_along_axis(x, at, 0)


def _columns(shape: Any) -> Any:
    return [jnp.arange(d).reshape([-1 if k == axis else 1 for k in range(len(shape))]) for axis, d in enumerate(shape)]


def add_along(x: Any, at: Any, n: Any) -> Any:
    index = (at, *_columns(x.shape)[1:])
    return jnp.zeros_like(x, shape=(n, *x.shape[1:])).at[index].add(x, mode="drop")


def max_at(x: Any, at: Any, m: Any) -> Any:
    return jax.ops.segment_max(x, at, m, mode="drop")


def min_at(x: Any, at: Any, m: Any) -> Any:
    return jax.ops.segment_min(x, at, m, mode="drop")


def front(x: Any, dim: int | None, batch: Any) -> Any:
    """The batch first; what has none is repeated."""
    return jnp.moveaxis(x, dim, 0) if dim is not None else jnp.broadcast_to(x, (batch, *x.shape))


concatenate = jnp.concatenate
clip = jnp.clip


def like(x: Any, other: Any) -> Any:
    """x in the dtype of another."""
    return x.astype(other.dtype)


def positions(at: Any, n: Any) -> Any:
    """Positions of n elements, in the dtype that they are kept in."""
    return at.astype(position_dtype(n))
