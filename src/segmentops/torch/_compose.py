# SPDX-License-Identifier: Apache-2.0
"""Operations as compositions of others: beyond the fused orders, and where only ATen may be used.

Over the binding's own entries (`_derivatives.namespace`) a composition keeps the engine's sums and can be
differentiated again. Over `ATEN` it is torch's own operations, for a forward-mode level inside a compiled
graph, which an operation of ours cannot see. Both compute in float64 and round once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops import calculus, formulas
from ..ops.calculus import PROGRAMS
from ..ops.table import OPERATIONS, PRIMITIVES
from ._arguments import dtype_of


class Namespace:
    """What the formulas of `segmentops.ops` need beyond the primitives."""

    where = staticmethod(torch.where)
    sqrt = staticmethod(torch.sqrt)
    maximum = staticmethod(torch.maximum)
    ones_like = staticmethod(torch.ones_like)
    zeros_like = staticmethod(torch.zeros_like)
    absolute = staticmethod(torch.abs)

    def __init__(self, primitives: dict[str, Any]) -> None:
        self.__dict__.update(primitives)

    def count(self, idx: Tensor, m: Any, like: Tensor) -> Tensor:
        return self.sum(like.new_ones(idx.shape), idx, m)  # type: ignore[attr-defined]

    @staticmethod
    def power_of_two(a: Tensor) -> Tensor:
        """The exponent of |a|, with no derivative; 1 where a is zero or no number."""
        a = a.detach()
        mantissa = torch.frexp(a).mantissa
        return torch.where((a != 0) & a.isfinite(), a / mantissa, torch.ones_like(a))

    @staticmethod
    def sum_columns(x: Tensor) -> Tensor:
        return x.flatten(1).sum(1) if x.dim() > 1 else x

    @staticmethod
    def column(s: Tensor, like: Tensor) -> Tensor:
        return s.reshape(s.shape + (1,) * (like.dim() - s.dim()))

    @classmethod
    def pick(cls, x: Tensor, at: Tensor) -> Tensor:
        """x[at], 0 where `at` is -1."""
        if x.shape[0] == 0:
            return x.new_zeros((at.shape[0], *x.shape[1:]))
        row = x.index_select(0, at.clamp(min=0))
        return torch.where(cls.column(at >= 0, row), row, torch.zeros_like(row))

    @classmethod
    def place(cls, row: Tensor, at: Tensor, like: Tensor) -> Tensor:
        """The transpose of `pick`."""
        out = like.new_zeros(like.shape)
        if like.shape[0] == 0:
            return out
        return out.index_add(0, at.clamp(min=0), torch.where(cls.column(at >= 0, row), row, torch.zeros_like(row)))


class Aten:
    """The primitives as torch's own operations. idx out of range is masked first: index_add raises on it."""

    @staticmethod
    def _inside(idx: Tensor, m: Any) -> tuple[Tensor, Tensor]:
        inside = (idx >= 0) & (idx < m)
        return inside, torch.where(inside, idx, 0)

    @classmethod
    def sum(cls, x: Tensor, idx: Tensor, m: Any) -> Tensor:
        inside, safe = cls._inside(idx, m)
        out = x.new_zeros((m, *x.shape[1:]))
        if x.shape[0] == 0:
            return out
        return out.index_add(0, safe, torch.where(Namespace.column(inside, x), x, torch.zeros_like(x)))

    @classmethod
    def broadcast(cls, y: Tensor, idx: Tensor, m: Any) -> Tensor:
        inside, safe = cls._inside(idx, m)
        if y.shape[0] == 0:
            return y.new_zeros((idx.shape[0], *y.shape[1:]))
        out = y.index_select(0, safe)
        return torch.where(Namespace.column(inside, out), out, torch.zeros_like(out))

    @classmethod
    def _counts(cls, y: Tensor, idx: Tensor, m: Any) -> Tensor:
        return Namespace.column(cls.sum(y.new_ones(idx.shape), idx, m).clamp(min=1), y)

    @classmethod
    def mean(cls, x: Tensor, idx: Tensor, m: Any) -> Tensor:
        total = cls.sum(x, idx, m)
        return total / cls._counts(total, idx, m)

    @classmethod
    def spread(cls, y: Tensor, idx: Tensor, m: Any) -> Tensor:
        return cls.broadcast(y / cls._counts(y, idx, m), idx, m)

    @classmethod
    def dot(cls, x: Tensor, y: Tensor, idx: Tensor, m: Any) -> Tensor:
        # Before the product: its derivative multiplies a zero by the data.
        return cls.sum(Namespace.sum_columns(cls._masked(x, idx, m) * cls._masked(y, idx, m)), idx, m)

    @classmethod
    def _masked(cls, x: Tensor, idx: Tensor, m: Any) -> Tensor:
        return torch.where(Namespace.column(cls._inside(idx, m)[0], x), x, torch.zeros_like(x))

    @classmethod
    def mul(cls, x: Tensor, s: Tensor, idx: Tensor, m: Any) -> Tensor:
        return cls._masked(x, idx, m) * Namespace.column(cls.broadcast(s, idx, m), x)

    @classmethod
    def matvec(cls, v: Tensor, a: Tensor, idx: Tensor, m: Any) -> Tensor:
        return (cls._masked(v, idx, m).unsqueeze(2) * cls.broadcast(a, idx, m)).sum(1)

    @classmethod
    def matvec_t(cls, w: Tensor, a: Tensor, idx: Tensor, m: Any) -> Tensor:
        return (cls._masked(w, idx, m).unsqueeze(1) * cls.broadcast(a, idx, m)).sum(2)

    @classmethod
    def outer(cls, v: Tensor, w: Tensor, idx: Tensor, m: Any) -> Tensor:
        return cls.sum(cls._masked(v, idx, m).unsqueeze(2) * cls._masked(w, idx, m).unsqueeze(1), idx, m)

    @classmethod
    def max_norm_at(cls, x: Tensor, idx: Tensor, m: Any) -> Tensor:
        """Where the largest norm of each segment is: the first NaN, else the first of the largest."""
        n = x.shape[0]
        if n == 0:
            return idx.new_full((m,), -1, dtype=torch.int64)
        inside, safe = cls._inside(idx, m)
        square = Namespace.sum_columns(x.detach() * x.detach())
        square = torch.where(inside, torch.where(square.isnan(), torch.inf, square), -1.0)  # an inf ties with a NaN
        largest = square.new_full((m,), -1.0).scatter_reduce(0, safe.long(), square, "amax")
        position = torch.arange(n, device=x.device)
        nan = Namespace.sum_columns(x.detach() * x.detach()).isnan() & inside
        has_nan = cls.sum(nan.to(x.dtype), idx, m) > 0
        chosen = torch.where(has_nan[safe.long()], nan, (square == largest[safe.long()]) & inside)
        at = position.new_full((m,), n).scatter_reduce(0, safe.long(), torch.where(chosen, position, n), "amin")
        return torch.where(at < n, at, -1)


def composed(name: str, P: Any, tensors: tuple[Any, ...], idx: Tensor, m: Any) -> Any:
    """Operation `name` over the namespace P, in float64, rounded once."""
    op = OPERATIONS[name]
    dtype = tensors[0].dtype
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    if name in PROGRAMS:
        program = PROGRAMS[name]
        values = dict(zip(program.inputs, wide, strict=True))

        def apply(primitive: str, *operands: Tensor) -> Any:
            if primitive.endswith("_add"):
                half, primitive = len(operands) // 2, primitive[: -len("_add")]
                run = getattr(P, primitive)
                return run(*operands[:half], idx, m) + run(*operands[half:], idx, m)
            return getattr(P, primitive)(*operands, idx, m)

        outs = [calculus.evaluate(terms, values, apply, torch.add) for terms in program.outputs.values()]
    elif name == "rms_norm":
        outs = list(formulas.rms_norm(P, wide[0], idx, m))
    elif name == "max_norm":
        at = Aten.max_norm_at(wide[0], idx, m)
        outs = [formulas.max_norm(P, wide[0], at), at]
    else:  # a derivative of a norm
        found = getattr(formulas, name)(P, *wide, idx, m)
        outs = list(found) if isinstance(found, tuple) else [found]
    outs = [o.to(dtype_of(r, dtype)) for o, r in zip(outs, op.results, strict=True)]
    return outs[0] if len(op.results) == 1 else tuple(outs)


ATEN = Namespace({name: getattr(Aten, name) for name in PRIMITIVES})
