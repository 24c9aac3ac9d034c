# SPDX-License-Identifier: Apache-2.0
"""Torch's functions of arrays, as the formulas of `ops` take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

inf = float("inf")
where = torch.where
sqrt = torch.sqrt
maximum = torch.maximum


def widen(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def constant(x: Tensor) -> Tensor:
    return x.detach()


def power_of_two(x: Tensor) -> Tensor:
    """The exponent of |x|, with no derivative; 1 where x is zero or not finite."""
    x = x.detach()
    return torch.where((x != 0) & x.isfinite(), x / torch.frexp(x).mantissa, torch.ones_like(x))


def ones(like: Tensor, shape: Any) -> Tensor:
    return like.new_ones(shape)


def zeros(like: Tensor, shape: Any) -> Tensor:
    return like.new_zeros(shape)


def arange(n: Any, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


def sum_columns(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1) if x.dim() > 1 else x


def take(x: Tensor, at: Tensor) -> Tensor:
    """Rows of x; zeros where it has none."""
    if x.shape[0] == 0:
        return x.new_zeros((at.shape[0], *x.shape[1:]))
    return x.index_select(0, at)


def add_at(x: Tensor, at: Tensor, m: Any) -> Tensor:
    """Rows of x added to m rows."""
    out = x.new_zeros((m, *x.shape[1:]))
    return out if x.shape[0] == 0 or at.shape[0] == 0 else out.index_add(0, at, x)


def take_along(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(0, at)


def add_along(x: Tensor, at: Tensor, n: Any) -> Tensor:
    out = x.new_zeros((n, *x.shape[1:]))
    return out if n == 0 else out.scatter_add(0, at, x)


def _rows(at: Tensor, like: Tensor) -> Tensor:
    return at.long().reshape(-1, *[1] * (like.dim() - 1)).expand(like.shape)


def max_at(x: Tensor, at: Tensor, m: Any) -> Tensor:
    return x.new_full((m, *x.shape[1:]), -inf).scatter_reduce(0, _rows(at, x), x, "amax")


def min_at(x: Tensor, at: Tensor, m: Any) -> Tensor:
    out = x.new_full((m, *x.shape[1:]), torch.iinfo(x.dtype).max)
    return out.scatter_reduce(0, _rows(at, x), x, "amin")


def front(x: Tensor, dim: int | None, batch: Any) -> Tensor:
    """The batch first; what has none is repeated, without a copy."""
    x = x.resolve_neg()  # torch makes no view of one whose tangent is not negated likewise
    return x.movedim(dim, 0) if dim is not None else x.unsqueeze(0).expand(batch, *x.shape)


def concatenate(parts: list[Tensor], axis: int) -> Tensor:
    return torch.cat(parts, dim=axis)


clip = torch.clamp


def like(x: Tensor, other: Tensor) -> Tensor:
    """x in the dtype of another."""
    return x.to(other.dtype)


def positions(at: Tensor, n: Any) -> Tensor:
    """Positions of n elements, in the dtype that they are kept in."""
    return at.long()
