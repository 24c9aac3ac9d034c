# SPDX-License-Identifier: Apache-2.0
"""vmap of an operation is the operation: the batch becomes a column where it can, else elements and segments.

Folded, sample b gets the segments b (M + 1) to b (M + 1) + M: the last one collects what is out of range and is
dropped, so idx stays sorted and padding stays padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..algebra import Operand, Operation
from ._arguments import LARGEST, position_dtype


def rule(op: Operation, bind: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of an operation; `bind(*operands, idx, m)` runs it."""

    def batched(args: Any, dims: Any, *, m: int) -> Any:
        *tensors, idx = args
        if op.columnwise and dims[-1] is None:
            return bind(jnp.moveaxis(tensors[0], dims[0], 1), idx, m), [1]
        batch = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        tensors = [_front(t, d, batch) for t, d in zip(tensors, dims, strict=False)]
        idx = _front(idx, dims[-1], batch)
        n, stride = idx.shape[1], m + 1
        if isinstance(batch, int) and isinstance(m, int) and batch * stride > LARGEST:
            if not jax.config.jax_enable_x64:
                raise ValueError(f"segmented_{op.name}: vmap over {batch} times {m} segments needs jax_enable_x64")
            idx = idx.astype(jnp.int64)
        number = jnp.arange(batch, dtype=idx.dtype)[:, None]
        inside = (idx >= 0) & (idx < m)
        folded = (jnp.clip(idx, -1, m) + number * stride).reshape(batch * n)
        flat = [_fold(o, t, number, n) for o, t in zip(op.operands, tensors, strict=True)]
        outs = bind(*flat, folded, batch * stride)
        return [_unfold(r, o, number, inside, stride) for r, o in zip(op.results, outs, strict=True)], [0] * len(outs)

    return batched


def _front(array: Any, dim: int | None, batch: int) -> Any:
    return jnp.moveaxis(array, dim, 0) if dim is not None else jnp.broadcast_to(array, (batch, *array.shape))


def _fold(operand: Operand, array: Any, number: Any, n: int) -> Any:
    """(B, N, ...) -> (B N, ...) or (B, M, ...) -> (B (M + 1), ...)."""
    if operand.lead == "m":
        if operand.dtype:  # positions of elements
            dtype = position_dtype(number.shape[0] * n)
            array = jnp.where(array >= 0, array.astype(dtype) + number.astype(dtype) * n, -1)
        pad = jnp.full_like(array, -1 if operand.dtype else 0, shape=(array.shape[0], 1, *array.shape[2:]))
        array = jnp.concatenate([array, pad], axis=1)
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _unfold(result: Operand, out: Any, number: Any, inside: Any, stride: Any) -> Any:
    batch, n = inside.shape
    out = out.reshape(batch, n if result.lead == "n" else stride, *out.shape[1:])
    if result.lead == "n":  # elements out of range met the dropped segment's data: 0 times NaN is NaN
        return jnp.where(inside.reshape(batch, n, *(1,) * (out.ndim - 2)), out, jnp.zeros_like(out))
    out = out[:, :-1]
    if result.dtype:
        out = jnp.where(out >= 0, out - number.astype(out.dtype) * n, out).astype(position_dtype(n))
    return out
