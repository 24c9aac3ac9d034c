# SPDX-License-Identifier: Apache-2.0
"""Each operation as JAX's own operations can say it: what ours is measured against.

Every entry of RIVALS[op] is a function of the op's arrays, an int32 idx and the number of segments. All are told that
idx is sorted. The benchmark compiles each with `jax.jit` and takes the fastest for each cell.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def segment_sum(x: Array, idx: Array, m: int) -> Array:
    return jax.ops.segment_sum(x, idx, m, indices_are_sorted=True)


def scatter_add(x: Array, idx: Array, m: int) -> Array:
    zeros = jnp.zeros((m, *x.shape[1:]), x.dtype)
    return zeros.at[idx].add(x, indices_are_sorted=True, mode="promise_in_bounds")


def _columns(s: Array, like: Array) -> Array:
    return s.reshape(s.shape + (1,) * (like.ndim - s.ndim))


def _counts(idx: Array, m: int, like: Array) -> Array:
    return jnp.maximum(scatter_add(jnp.ones(idx.shape, like.dtype), idx, m), 1)


def _searched_counts(idx: Array, m: int, like: Array) -> Array:
    """M log N instead of N."""
    return jnp.maximum(jnp.diff(jnp.searchsorted(idx, jnp.arange(m + 1, dtype=idx.dtype))), 1).astype(like.dtype)


def _gather(y: Array, idx: Array) -> Array:
    return y.at[idx].get(indices_are_sorted=True, mode="promise_in_bounds")


def _inner(x: Array, y: Array) -> Array:
    return (x * y).sum(1) if x.ndim > 1 else x * y


def mean(x: Array, idx: Array, m: int) -> Array:
    total = scatter_add(x, idx, m)
    return total / _columns(_counts(idx, m, x), total)


def mean_search(x: Array, idx: Array, m: int) -> Array:
    total = scatter_add(x, idx, m)
    return total / _columns(_searched_counts(idx, m, x), total)


def mean_segment_sum(x: Array, idx: Array, m: int) -> Array:
    total = segment_sum(x, idx, m)
    return total / _columns(jnp.maximum(segment_sum(jnp.ones(idx.shape, x.dtype), idx, m), 1), total)


def dot(x: Array, y: Array, idx: Array, m: int) -> Array:
    return scatter_add(_inner(x, y), idx, m)


def dot_segment_sum(x: Array, y: Array, idx: Array, m: int) -> Array:
    return segment_sum(_inner(x, y), idx, m)


def rms_norm(x: Array, idx: Array, m: int) -> Array:
    return jnp.sqrt(dot(x, x, idx, m) / _counts(idx, m, x))


def rms_norm_search(x: Array, idx: Array, m: int) -> Array:
    return jnp.sqrt(dot(x, x, idx, m) / _searched_counts(idx, m, x))


def max_norm(x: Array, idx: Array, m: int) -> Array:
    return jnp.sqrt(jax.ops.segment_max(_inner(x, x), idx, m, indices_are_sorted=True))


def segment_max(x: Array, idx: Array, m: int) -> Array:
    return jax.ops.segment_max(x, idx, m, indices_are_sorted=True)


def segment_min(x: Array, idx: Array, m: int) -> Array:
    return jax.ops.segment_min(x, idx, m, indices_are_sorted=True)


def mul(x: Array, y: Array, idx: Array, m: int) -> Array:
    return x * _columns(_gather(y, idx), x)


def mul_index(x: Array, y: Array, idx: Array, m: int) -> Array:
    return x * _columns(y[idx], x)


def matvec(v: Array, a: Array, idx: Array, m: int) -> Array:
    return (v[:, :, None] * _gather(a, idx)).sum(1)


def matvec_einsum(v: Array, a: Array, idx: Array, m: int) -> Array:
    return jnp.einsum("nk,nkj->nj", v, a[idx])


RIVALS: dict[str, list[Callable[..., Array]]] = {
    "sum": [segment_sum, scatter_add],
    "mean": [mean, mean_search, mean_segment_sum],
    "dot": [dot, dot_segment_sum],
    "rms_norm": [rms_norm, rms_norm_search],
    "max_norm": [max_norm],
    "max": [segment_max],
    "min": [segment_min],
    "mul": [mul, mul_index],
    "matvec": [matvec, matvec_einsum],
}
