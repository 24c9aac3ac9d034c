# SPDX-License-Identifier: Apache-2.0
"""The benchmark's cells on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import peers
import rivals_torch
import torch
from cells import Cell, Job, Jobs
from timing import clock  # noqa: F401  part of what a framework's module offers
from torch import Tensor

from segmentops.torch import segment_ops as ours

OPERATIONS = tuple(rivals_torch.ANY_ORDER)


def about(device: str) -> str:
    where = f", {torch.cuda.get_device_name()}" if device == "cuda" else f" with {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}{where}"


def can(cell: Cell) -> bool:
    return True


@dataclass(frozen=True)
class Problem:
    """A cell's arrays on a device, and what a function costs on them."""

    inputs: list[Tensor]
    idx: Tensor
    m: int
    cotangent: Tensor
    moving: list[Tensor]

    def job(self, function: Callable[..., Tensor], order: str, idx: Tensor) -> Job:
        """A call without arguments that does what the order says."""
        m = self.m
        if order == "forward":

            def forward() -> object:
                with torch.no_grad():
                    return function(*self.inputs, idx, m)

            return forward
        leaves = [x.clone().requires_grad_() for x in self.inputs]
        if order == "backward":
            return lambda: torch.autograd.grad(function(*leaves, idx, m), leaves, self.cotangent)
        cotangent = self.cotangent.clone().requires_grad_()

        def second() -> object:
            first = torch.autograd.grad(function(*leaves, idx, m), leaves, cotangent, create_graph=True)
            return torch.autograd.grad(first, [*leaves, cotangent], self.moving, allow_unused=True)

        return second


def problem(cell: Cell, device: str) -> Problem:
    data, dtype = cell.data(), getattr(torch, cell.dtype)
    inputs, moving = ([torch.from_numpy(x).to(device, dtype) for x in arrays] for arrays in (data.inputs, data.moving))
    idx = torch.from_numpy(data.idx).to(device)
    return Problem(inputs, idx, cell.m, torch.from_numpy(data.cotangent).to(device, dtype), moving)


def jobs(cell: Cell, device: str) -> Jobs:
    p = problem(cell, device)
    order, operation, largest = cell.order, cell.operation, p.inputs[0].new_ones(cell.largest())
    others = peers.functions(operation, order, p.inputs[0])
    if operation in ("sum", "mean", "max", "min") and order != "second":
        initial = 0 if operation in ("sum", "mean") else None
        lengths = torch.bincount(p.idx, minlength=p.m)

        def segment_reduce(x: Tensor, idx: Tensor, m: int) -> Tensor:
            return torch.segment_reduce(x, operation, lengths=lengths, unsafe=True, initial=initial)

        others["segment_reduce"] = segment_reduce
    return Jobs(
        p.job(getattr(ours, "segmented_" + operation), order, p.idx.int()),
        {name: p.job(rival, order, p.idx) for name, rival in rivals_torch.rivals(operation, order).items()},
        largest.clone,
        {name: p.job(function, order, p.idx) for name, function in others.items()},
    )
