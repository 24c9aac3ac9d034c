# SPDX-License-Identifier: Apache-2.0
"""The seven ops as compositions of ATen ops: the oracle for derivatives and transforms.

Each is differentiable to any order, in both modes and under every transform, with the derivatives that the
contract asks for where a norm is 0: `where` twice, so that no infinity is multiplied by the zero that should
hide it. They are neither fast nor reproducible nor accurate in the sense of the contract; float64 hides that.
"""

import torch


def _columns(s, x):
    return s.reshape(s.shape + (1,) * (x.dim() - s.dim()))


def _flat(x):
    return x.flatten(1).sum(1) if x.dim() > 1 else x


def _counts(x, idx, m):
    ones = torch.ones(idx.shape, dtype=x.dtype, device=x.device)
    return x.new_zeros(m).index_add(0, idx, ones).clamp(min=1)


def _root(square):
    there = square != 0  # NaN != 0
    return torch.where(there, torch.where(there, square, 1.0).sqrt(), 0.0)


def segmented_sum(x, idx, num_segments):
    return x.new_zeros((num_segments, *x.shape[1:])).index_add(0, idx, x)


def segmented_mean(x, idx, num_segments):
    return segmented_sum(x, idx, num_segments) / _columns(_counts(x, idx, num_segments), x)


def segmented_dot(x, y, idx, num_segments):
    return segmented_sum(_flat(x * y), idx, num_segments)


def segmented_rms_norm(x, idx, num_segments):
    return _root(segmented_dot(x, x, idx, num_segments) / _counts(x, idx, num_segments))


def segmented_max_norm(x, idx, num_segments):
    if x.shape[0] == 0:
        return segmented_sum(_flat(x), idx, num_segments)
    square = _flat(x * x)
    with torch.no_grad():
        wide, n = idx.long(), x.shape[0]
        fixed = square.detach()
        lowest = torch.full((num_segments,), -torch.inf, dtype=x.dtype)
        largest = lowest.scatter_reduce(0, wide, fixed, "amax")
        position = torch.arange(n)
        tied = torch.where(fixed == largest.index_select(0, wide), position, n)
        at = torch.full((num_segments,), n).scatter_reduce(0, wide, tied, "amin")  # n: an empty segment
    there = at < n
    picked = square.index_select(0, torch.where(there, at, 0))
    return _root(torch.where(there, picked, 0.0))


def segmented_max(x, idx, num_segments):
    return _extreme(x, idx, num_segments, "amax")


def segmented_min(x, idx, num_segments):
    return _extreme(x, idx, num_segments, "amin")


def _extreme(x, idx, m, reduce):
    if x.shape[0] == 0:
        return segmented_sum(x, idx, m)
    with torch.no_grad():
        fixed, wide = x.detach(), idx.long()
        rows = _columns(wide, x).expand(x.shape)
        first = torch.zeros((m, *x.shape[1:]), dtype=x.dtype)
        extreme = first.scatter_reduce(0, rows, fixed, reduce, include_self=False)
        position = _columns(torch.arange(len(x)), x)
        tied = torch.where(fixed == extreme.index_select(0, wide), position, len(x))
        at = torch.full(extreme.shape, len(x)).scatter_reduce(0, rows, tied, "amin")
    there = at < len(x)
    return torch.where(there, x.gather(0, torch.where(there, at, 0)), 0.0)


def segmented_mul(x, y, idx, num_segments):
    return x * _columns(y.index_select(0, idx), x)


def segmented_matvec(v, m, idx, num_segments):
    return (v.unsqueeze(-1) * m.index_select(0, idx)).sum(-2)
