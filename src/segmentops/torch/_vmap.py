# SPDX-License-Identifier: Apache-2.0
"""vmap of an operation is the operation: the batch becomes a column where it can, else elements and segments.

Folded, sample b gets the segments b (M + 1) to b (M + 1) + M: the last one collects what is out of range and is
dropped, so idx stays sorted and padding stays padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops.table import Operand, Operation
from . import _memory


def rule(op: Operation, target: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of an operation, for `torch.library.register_vmap`."""

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        *tensors, idx, m = args
        _memory.check_real(op, tensors, idx)
        if op.columnwise and in_dims[-2] is None:
            return target(tensors[0].movedim(in_dims[0], 1), idx, m), 1
        batch = info.batch_size
        tensors = [_front(t, d, batch) for t, d in zip(tensors, in_dims, strict=False)]
        idx = _front(idx, in_dims[-2], batch)
        n, stride = idx.shape[1], m + 1
        if batch * stride > torch.iinfo(torch.int32).max:
            idx = idx.long()
        number = torch.arange(batch, device=idx.device, dtype=idx.dtype).unsqueeze(1)
        if not op.columnwise:
            inside = (idx >= 0) & (idx < m)
            tensors = [_masked(t, inside) if o.lead == "n" else t for o, t in zip(op.operands, tensors, strict=True)]
        folded = (idx.clamp(-1, m) + number * stride).reshape(-1)
        flat = [_fold(o, t, number, n) for o, t in zip(op.operands, tensors, strict=True)]
        outs = target(*flat, folded, batch * stride)
        if len(op.results) == 1:
            return _unfold(op.results[0], outs, number, n, stride), 0
        back = tuple(_unfold(r, o, number, n, stride) for r, o in zip(op.results, outs, strict=True))
        return back, (0,) * len(back)

    return batched


def _front(tensor: Tensor, dim: int | None, batch: int) -> Tensor:
    tensor = tensor.resolve_neg()  # torch makes no view of one whose tangent is not negated likewise
    return tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(batch, *tensor.shape)


def _masked(tensor: Tensor, inside: Tensor) -> Tensor:
    """(B, N, ...), 0 where an element is out of range: its data is multiplied by zeros, and 0 times NaN is NaN."""
    return torch.where(inside.reshape(*inside.shape, *(1,) * (tensor.dim() - 2)), tensor, torch.zeros_like(tensor))


def _fold(operand: Operand, tensor: Tensor, number: Tensor, n: Any) -> Tensor:
    """(B, N, ...) -> (B N, ...) or (B, M, ...) -> (B (M + 1), ...)."""
    if operand.lead == "m":
        if operand.dtype:  # positions of elements
            tensor = torch.where(tensor >= 0, tensor + number.to(tensor.dtype) * n, tensor)
        pad = tensor.new_full((tensor.shape[0], 1, *tensor.shape[2:]), -1 if operand.dtype else 0)
        tensor = torch.cat([tensor, pad], dim=1)
    return tensor.reshape(tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])


def _unfold(result: Operand, out: Tensor, number: Tensor, n: Any, stride: Any) -> Tensor:
    out = out.reshape(number.shape[0], n if result.lead == "n" else stride, *out.shape[1:])
    if result.lead == "n":
        return out
    out = out[:, :-1]
    if result.dtype:
        out = torch.where(out >= 0, out - number.to(out.dtype) * n, out)
    return out
