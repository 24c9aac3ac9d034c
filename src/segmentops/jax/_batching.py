# SPDX-License-Identifier: Apache-2.0
"""vmap of an operation is the operation: the batch becomes a column where it can, else elements and segments.

Folded, sample b gets the segments b (M + 1) to b (M + 1) + M: the last one collects what is out of range and is
dropped, so idx stays sorted and padding stays padding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..ops.table import Operand, Operation
from ._arguments import LARGEST, narrow, position_dtype
from ._compat import by_samples

WIDE = 16  # scalars in a row: below, a transpose costs less than an idx for each sample


def rule(op: Operation, bind: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of an operation; `bind(*operands, idx, m)` runs it."""

    def batched(args: Any, dims: Any, *, m: int) -> Any:
        return by_samples(functools.partial(folded_batch, m=m), args, dims, (op, bind, m))

    def folded_batch(args: Any, dims: Any, *, m: int) -> Any:
        *tensors, idx = args
        idx = narrow(idx)
        batch = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        stride = m + 1
        many = isinstance(batch, int) and isinstance(m, int) and batch * stride > LARGEST
        if op.columnwise and dims[-1] is None and (many or not _elements_pay(tensors[0].shape, dims[0], m)):
            return bind(jnp.moveaxis(tensors[0], dims[0], 1), idx, m), [1]
        if many and not jax.config.jax_enable_x64:
            raise ValueError(f"segmented_{op.name}: vmap over {batch} times {m} segments needs jax_enable_x64")
        tensors = [_front(t, d, batch) for t, d in zip(tensors, dims, strict=False)]
        idx = idx[None] if dims[-1] is None else jnp.moveaxis(idx, dims[-1], 0)
        if many:
            idx = idx.astype(jnp.int64)
        n = idx.shape[1]
        number = jnp.arange(batch, dtype=idx.dtype)[:, None]
        if not op.columnwise:
            inside = (idx >= 0) & (idx < m)
            tensors = [_masked(t, inside) if o.lead == "n" else t for o, t in zip(op.operands, tensors, strict=True)]
        folded = (jnp.clip(idx, -1, m) + number * stride).reshape(batch * n)
        flat = [_fold(o, t, number, n) for o, t in zip(op.operands, tensors, strict=True)]
        outs = bind(*flat, folded, batch * stride)
        return [_unfold(r, o, number, n, stride) for r, o in zip(op.results, outs, strict=True)], [0] * len(outs)

    return batched


def _elements_pay(shape: Any, dim: int, m: Any) -> bool:
    """Whether samples that lie one after the other are better left there than made columns, which transposes them.

    The bits are the same: those of narrow rows, which are not, depend on whether they are columns of a wider array.
    """
    return dim == 0 and all(isinstance(d, int) for d in (*shape, m)) and math.prod(shape[2:]) >= WIDE


def _front(array: Any, dim: int | None, batch: int) -> Any:
    return jnp.moveaxis(array, dim, 0) if dim is not None else jnp.broadcast_to(array, (batch, *array.shape))


def _masked(array: Any, inside: Any) -> Any:
    """(B, N, ...), 0 where an element is out of range: its data is multiplied by zeros, and 0 times NaN is NaN."""
    return jnp.where(inside.reshape(*inside.shape, *(1,) * (array.ndim - 2)), array, jnp.zeros_like(array))


def _fold(operand: Operand, array: Any, number: Any, n: int) -> Any:
    """(B, N, ...) -> (B N, ...) or (B, M, ...) -> (B (M + 1), ...)."""
    if operand.lead == "m":
        if operand.dtype:  # positions of elements
            dtype = position_dtype(number.shape[0] * n)
            array = jnp.where(array >= 0, array.astype(dtype) + number.astype(dtype) * n, -1)
        pad = jnp.full_like(array, -1 if operand.dtype else 0, shape=(array.shape[0], 1, *array.shape[2:]))
        array = jnp.concatenate([array, pad], axis=1)
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _unfold(result: Operand, out: Any, number: Any, n: int, stride: Any) -> Any:
    out = out.reshape(number.shape[0], n if result.lead == "n" else stride, *out.shape[1:])
    if result.lead == "n":
        return out
    out = out[:, :-1]
    if result.dtype:
        out = jnp.where(out >= 0, out - number.astype(out.dtype) * n, out).astype(position_dtype(n))
    return out
