# SPDX-License-Identifier: Apache-2.0
"""vmap of an operation is the operation: the batch becomes a column where it can, else elements and segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ops.batch import Fold
from ..ops.table import Operation
from . import _arrays, _memory


def rule(op: Operation, target: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of an operation, for `torch.library.register_vmap`."""
    single = len(op.results) == 1

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        *tensors, idx, m = args
        _memory.check_real(op, tensors, idx)
        batch = info.batch_size
        tensors = [_arrays.front(t, d, batch) for t, d in zip(tensors, in_dims, strict=False)]
        if op.columnwise and in_dims[-2] is None:
            outs = target(*(t.movedim(0, 1) for t in tensors), idx, m)
            return outs, 1 if single else (1,) * len(op.results)
        idx = _arrays.front(idx, in_dims[-2], batch)
        if batch * (m + 1) > torch.iinfo(torch.int32).max:
            idx = idx.long()
        fold = Fold(op, _arrays, tensors, idx, m, batch)
        outs = target(*fold.operands, fold.idx, fold.m)
        found = fold.results((outs,) if single else outs)
        return (found[0], 0) if single else (tuple(found), (0,) * len(found))

    return batched
