# SPDX-License-Identifier: Apache-2.0
"""vmap of an operation is the operation: the batch becomes a column where it can, else elements and segments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..ops.batch import Fold
from ..ops.table import Operation
from . import _arrays
from ._arguments import LARGEST, narrow
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
        many = isinstance(batch, int) and isinstance(m, int) and batch * (m + 1) > LARGEST
        columns = op.columnwise and dims[-1] is None and (many or not _elements_pay(tensors[0].shape, dims[0], m))
        tensors = [_arrays.front(t, d, batch) for t, d in zip(tensors, dims, strict=False)]
        if columns:
            outs = bind(*(jnp.moveaxis(t, 0, 1) for t in tensors), idx, m)
            return outs, [1] * len(outs)
        if many and not jax.config.jax_enable_x64:
            raise ValueError(f"segmented_{op.name}: vmap over {batch} times {m} segments needs jax_enable_x64")
        idx = idx[None] if dims[-1] is None else jnp.moveaxis(idx, dims[-1], 0)
        fold = Fold(op, _arrays, tensors, idx.astype(jnp.int64) if many else idx, m, batch)
        outs = fold.results(bind(*fold.operands, fold.idx, fold.m))
        return outs, [0] * len(outs)

    return batched


def _elements_pay(shape: Any, dim: int, m: Any) -> bool:
    """Whether samples that lie one after the other are better left there than made columns, which transposes them.

    The bits are the same: those of narrow rows, which are not, depend on whether they are columns of a wider array.
    """
    return dim == 0 and all(isinstance(d, int) for d in (*shape, m)) and math.prod(shape[2:]) >= WIDE
