# SPDX-License-Identifier: Apache-2.0
"""vmap of an operation is the operation: the batch becomes elements and segments.

Sample b gets the segments b (M + 1) to b (M + 1) + M: the last one collects what is out of range and is dropped, so idx
stays sorted and padding stays padding. (Where a trailing shape is mapped column by column and idx is shared, a binding
may make the batch one more column instead.) Written over an object A with the functions of a framework's arrays.
"""

from __future__ import annotations

from typing import Any

from .table import Operand, Operation


class Fold:
    """The operands (B, N, ...) and (B, M, ...) of an operation, and its idx (B, N) or (1, N), as those of one call."""

    def __init__(self, op: Operation, A: Any, operands: list[Any], idx: Any, m: Any, batch: Any) -> None:
        self.op, self.A, self.n, self.stride = op, A, idx.shape[1], m + 1
        self.number = A.arange(batch, idx)[:, None]  # of the sample
        if not op.columnwise:
            # data out of range would be multiplied by zeros, and 0 times NaN is NaN
            inside = (idx >= 0) & (idx < m)
            pairs = zip(op.operands, operands, strict=True)
            operands = [self._masked(x, inside) if o.lead == "n" else x for o, x in pairs]
        self.idx = (A.clip(idx, -1, m) + A.like(self.number, idx) * self.stride).reshape(batch * self.n)
        self.m = batch * self.stride
        self.operands = [self._flat(o, x) for o, x in zip(op.operands, operands, strict=True)]

    def _masked(self, x: Any, inside: Any) -> Any:
        mask = inside.reshape(*inside.shape, *(1,) * (x.ndim - 2))
        return self.A.where(mask, x, self.A.zeros(x, x.shape))

    def _first(self, x: Any) -> Any:
        """The position of the first element of each sample, to go with positions x."""
        return self.A.like(self.number, x).reshape(-1, *(1,) * (x.ndim - 1)) * self.n

    def _flat(self, operand: Operand, x: Any) -> Any:
        """(B, N, ...) -> (B N, ...) or (B, M, ...) -> (B (M + 1), ...)."""
        A = self.A
        if operand.lead == "m":
            none = A.zeros(x, (x.shape[0], 1, *x.shape[2:]))
            if operand.dtype:  # positions of elements
                x, none = A.positions(x, self.number.shape[0] * self.n), none - 1
                x = A.where(x >= 0, x + self._first(x), -1)
            x = A.concatenate([x, A.like(none, x)], 1)
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    def results(self, outs: Any) -> list[Any]:
        """The results of the one call, as (B, N, ...) and (B, M, ...)."""
        return [self._apart(r, out) for r, out in zip(self.op.results, outs, strict=True)]

    def _apart(self, result: Operand, out: Any) -> Any:
        out = out.reshape(self.number.shape[0], self.n if result.lead == "n" else self.stride, *out.shape[1:])
        if result.lead == "n":
            return out
        out = out[:, :-1]
        return self.A.positions(self.A.where(out >= 0, out - self._first(out), -1), self.n) if result.dtype else out
