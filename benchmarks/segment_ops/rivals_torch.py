# SPDX-License-Identifier: Apache-2.0
"""Each operation as PyTorch's own operations can say it: what ours is measured against.

`rivals(operation, order)` are functions of the op's tensors, idx and the number of segments. The benchmark takes the
fastest of them for each cell. They get idx as int64, which most of torch asks for; ours gets int32. A sum goes in
place into fresh zeros, which saves a copy. `segment_reduce` and `embedding_bag` use that idx is sorted; their
backwards cannot be differentiated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

warnings.filterwarnings("ignore", "index_reduce")  # beta, says torch

Rival = Callable[..., Tensor]


def _zeros(x: Tensor, m: int) -> Tensor:
    return x.new_zeros((m, *x.shape[1:]))


def _rows(idx: Tensor, like: Tensor) -> Tensor:
    return idx.unsqueeze(1).expand_as(like) if like.dim() > 1 else idx


# ------------------------------------------------------------------ lengths of segments
# Searching costs M log N and counting N. (And bincount waits for a GPU.)
def _search(idx: Tensor, m: int) -> bool:
    return idx.is_cuda or 50 * m < idx.shape[0]


def _offsets(idx: Tensor, m: int) -> Tensor:
    if _search(idx, m):
        return torch.searchsorted(idx, torch.arange(m + 1, device=idx.device))
    return pad(torch.bincount(idx, minlength=m).cumsum(0), (1, 0))


def _counts(idx: Tensor, m: int) -> Tensor:
    return _offsets(idx, m).diff() if _search(idx, m) else torch.bincount(idx, minlength=m)


# ------------------------------------------------------------------ sums and means
def index_add(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return _zeros(x, m).index_add_(0, idx, x)


def scatter_add(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return _zeros(x, m).scatter_add_(0, _rows(idx, x), x)


def segment_reduce(x: Tensor, idx: Tensor, m: int, how: str = "sum") -> Tensor:
    if _search(idx, m):
        return torch.segment_reduce(x, how, offsets=_offsets(idx, m), unsafe=True, initial=0)
    return torch.segment_reduce(x, how, lengths=_counts(idx, m), unsafe=True, initial=0)


def bag(x: Tensor, idx: Tensor, m: int, how: str = "sum") -> Tensor:
    rows = x if x.dim() > 1 else x.unsqueeze(1)
    places = torch.arange(x.shape[0], device=x.device)
    return embedding_bag(places, rows, _offsets(idx, m)[:-1], mode=how).reshape(m, *x.shape[1:])


def _mean_by(total: Rival) -> Rival:
    def mean(x: Tensor, idx: Tensor, m: int) -> Tensor:
        counts = _counts(idx, m).clamp_(min=1)
        return total(x, idx, m).div_(counts.unsqueeze(1) if x.dim() > 1 else counts)

    return _named(mean, f"{total.__name__} / count")


def scatter_mean(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return _zeros(x, m).scatter_reduce_(0, _rows(idx, x), x, "mean", include_self=False)


def segment_mean(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return segment_reduce(x, idx, m, "mean")


def bag_mean(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return bag(x, idx, m, "mean")


# ------------------------------------------------------------------ what is built of them
def _named(function: Rival, name: str) -> Rival:
    function.__name__ = name
    return function


def by_ones(x: Tensor, y: Tensor) -> Tensor:
    return (x * y) @ x.new_ones(x.shape[1]) if x.dim() > 1 else x * y


def einsum(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("nk,nk->n", x, y) if x.dim() > 1 else x * y


def _dot_by(inner: Callable[[Tensor, Tensor], Tensor], total: Rival) -> Rival:
    return _named(lambda x, y, idx, m: total(inner(x, y), idx, m), f"{total.__name__} of {inner.__name__}")


def _root_by(inner: Callable[[Tensor, Tensor], Tensor], mean: Rival) -> Rival:
    return _named(lambda x, idx, m: mean(inner(x, x), idx, m).sqrt(), f"root of {mean.__name__} of {inner.__name__}")


def max_of_norms(x: Tensor, idx: Tensor, m: int) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=1) if x.dim() > 1 else x.abs()
    return x.new_zeros(m).scatter_reduce_(0, idx, norm, "amax")


def root_of_max(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return x.new_zeros(m).scatter_reduce_(0, idx, by_ones(x, x), "amax").sqrt()


def root_of_index_max(x: Tensor, idx: Tensor, m: int) -> Tensor:
    return x.new_zeros(m).index_reduce_(0, idx, by_ones(x, x), "amax").sqrt()


def _scatter_reduce(how: str) -> Rival:
    def reduce(x: Tensor, idx: Tensor, m: int) -> Tensor:
        return _zeros(x, m).scatter_reduce_(0, _rows(idx, x), x, how, include_self=False)

    return _named(reduce, f"scatter_reduce {how}")


def _index_reduce(how: str) -> Rival:
    def reduce(x: Tensor, idx: Tensor, m: int) -> Tensor:
        return _zeros(x, m).index_reduce_(0, idx, x, how, include_self=False)

    return _named(reduce, f"index_reduce {how}")


def _times(x: Tensor, s: Tensor) -> Tensor:
    return x * (s.unsqueeze(1) if x.dim() > 1 else s)


def mul_select(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    return _times(x, y.index_select(0, idx))


def mul_gather(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    return _times(x, y.gather(0, idx))


def mul_index(x: Tensor, y: Tensor, idx: Tensor, m: int) -> Tensor:
    return _times(x, y[idx])


def matvec_einsum(v: Tensor, a: Tensor, idx: Tensor, m: int) -> Tensor:
    return torch.einsum("nk,nkj->nj", v, a.index_select(0, idx))


def matvec_bmm(v: Tensor, a: Tensor, idx: Tensor, m: int) -> Tensor:
    return torch.bmm(v.unsqueeze(1), a.index_select(0, idx)).squeeze(1)


def matvec_rows(v: Tensor, a: Tensor, idx: Tensor, m: int) -> Tensor:
    rows = a.index_select(0, idx).unbind(1)
    out = v[:, :1] * rows[0]
    for k in range(1, v.shape[1]):
        out = torch.addcmul(out, v[:, k : k + 1], rows[k])
    return out


# ------------------------------------------------------------------ the table
SUMS = [index_add, scatter_add]
MEANS = [_mean_by(index_add), _mean_by(scatter_add), scatter_mean]
ANY_ORDER: dict[str, list[Rival]] = {
    "sum": SUMS,
    "mean": MEANS,
    "dot": [*(_dot_by(by_ones, total) for total in SUMS), _dot_by(einsum, scatter_add)],
    "rms_norm": [*(_root_by(by_ones, mean) for mean in MEANS[:2]), _root_by(einsum, MEANS[1])],
    "max_norm": [max_of_norms, root_of_max, root_of_index_max],
    "max": [_scatter_reduce("amax"), _index_reduce("amax")],
    "min": [_scatter_reduce("amin"), _index_reduce("amin")],
    "mul": [mul_select, mul_gather, mul_index],
    "matvec": [matvec_einsum, matvec_bmm, matvec_rows],
}
FIRST_ORDER: dict[str, list[Rival]] = {
    "sum": [segment_reduce, bag],
    "mean": [segment_mean, bag_mean],
    "dot": [_dot_by(by_ones, segment_reduce)],
    "rms_norm": [_root_by(by_ones, segment_mean)],
}


def rivals(operation: str, order: str) -> dict[str, Rival]:
    found = ANY_ORDER[operation] + (FIRST_ORDER.get(operation, []) if order != "second" else [])
    return {rival.__name__: rival for rival in found}
