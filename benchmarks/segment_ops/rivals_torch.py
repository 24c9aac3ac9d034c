# SPDX-License-Identifier: Apache-2.0
"""Each operation as PyTorch's own operations can say it: what ours is measured against.

Every entry of RIVALS[op] is a function of the op's tensors, an int64 idx and the number of segments. The benchmark
takes the fastest of them for each cell. They get idx as int64, which is what torch prefers; ours gets int32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _rows(idx: Tensor, like: Tensor) -> Tensor:
    return idx.reshape(-1, *(1,) * (like.dim() - 1)).expand(like.shape)


def index_add(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return x.new_zeros((m, *x.shape[1:])).index_add(0, idx, x)


def scatter_add(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return x.new_zeros((m, *x.shape[1:])).scatter_add(0, _rows(idx, x), x)


def _count(idx: Tensor, m: int, like: Tensor) -> Tensor:
    return torch.bincount(idx, minlength=m).clamp(min=1).to(like.dtype).reshape(-1, *(1,) * (like.dim() - 1))


def mean_index_add(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return index_add(x, idx, m) / _count(idx, m, x)


def mean_scatter_reduce(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return x.new_zeros((m, *x.shape[1:])).scatter_reduce(0, _rows(idx, x), x, "mean", include_self=False)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1) if x.dim() > 1 else x * y


def dot_index_add(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    return index_add(_inner(x, y), idx, m)


def dot_einsum(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    return scatter_add(torch.einsum("nk,nk->n", x, y) if x.dim() > 1 else x * y, idx, m)


def rms_norm(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return (index_add(_inner(x, x), idx, m) / torch.bincount(idx, minlength=m).clamp(min=1)).sqrt()


def max_norm(x: Tensor, idx: Tensor, m: int) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=1) if x.dim() > 1 else x.abs()
    return x.new_zeros(m).scatter_reduce(0, idx, norm, "amax")


def mul_select(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    s = y.index_select(0, idx)
    return x * (s.unsqueeze(1) if x.dim() > 1 else s)


def mul_gather(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    s = y[idx]
    return x * (s[:, None] if x.dim() > 1 else s)


def matvec_einsum(v: Tensor, a: Tensor, idx: Tensor, m: int) -> Tensor:
    return torch.einsum("nk,nkj->nj", v, a[idx])


def matvec_bmm(v: Tensor, a: Tensor, idx: Tensor, m: int) -> Tensor:
    return torch.bmm(v.unsqueeze(1), a.index_select(0, idx)).squeeze(1)


def matvec_sum(v: Tensor, a: Tensor, idx: Tensor, m: int) -> Tensor:
    return (v.unsqueeze(2) * a.index_select(0, idx)).sum(1)


RIVALS: dict[str, list[Callable[..., Tensor]]] = {
    "sum": [index_add, scatter_add],
    "mean": [mean_index_add, mean_scatter_reduce],
    "dot": [dot_index_add, dot_einsum],
    "rms_norm": [rms_norm],
    "max_norm": [max_norm],
    "mul": [mul_select, mul_gather],
    "matvec": [matvec_einsum, matvec_bmm, matvec_sum],
}
