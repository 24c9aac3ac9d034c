# SPDX-License-Identifier: Apache-2.0
"""The benchmark's cells on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cells import Cell, Jobs
from rivals_torch import RIVALS
from torch import Tensor

from nvalchemiops.torch import segment_ops as ours

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
OPERATIONS = tuple(RIVALS)


def about(device: str) -> str:
    return f"{device}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def tensors(cell: Cell, device: str) -> tuple[list[Tensor], Tensor]:
    g = torch.Generator().manual_seed(0)
    m = cell.segments
    idx = torch.sort(torch.randint(0, m, (cell.n,), generator=g)).values
    shapes = cell.shapes()
    inputs = [torch.randn(*shape, generator=g, dtype=DTYPES[cell.dtype]).to(device) for shape in shapes]
    return inputs, idx.to(device)


def job(function: Callable[..., Tensor], order: str, inputs: list[Tensor], idx: Tensor, m: int) -> Callable[[], object]:
    """A call without arguments that does what the order says."""
    if order == "forward":

        def forward() -> object:
            with torch.no_grad():
                return function(*inputs, idx, m)

        return forward
    leaves = [x.clone().requires_grad_() for x in inputs]
    cotangent = torch.randn_like(function(*leaves, idx, m))
    if order == "backward":
        return lambda: torch.autograd.grad(function(*leaves, idx, m), leaves, cotangent)
    moving = [torch.randn_like(x) for x in leaves]
    cotangent.requires_grad_()

    def second() -> object:
        first = torch.autograd.grad(function(*leaves, idx, m), leaves, cotangent, create_graph=True)
        return torch.autograd.grad(first, [*leaves, cotangent], moving, allow_unused=True)

    return second


def jobs(cell: Cell, device: str) -> Jobs:
    inputs, idx = tensors(cell, device)
    narrow, m = idx.int(), cell.segments
    function = getattr(ours, "segmented_" + cell.operation)
    result = function(*inputs, narrow, m)
    largest = max([*inputs, result], key=torch.numel)
    segment_reduce = None
    if cell.operation in ("sum", "mean") and cell.order == "forward":
        lengths = torch.bincount(idx, minlength=m)

        def segment_reduce() -> object:
            return torch.segment_reduce(inputs[0], cell.operation, lengths=lengths, unsafe=True)

    return Jobs(
        job(function, cell.order, inputs, narrow, m),
        {rival.__name__: job(rival, cell.order, inputs, idx, m) for rival in RIVALS[cell.operation]},
        lambda: largest.clone(),
        segment_reduce,
        torch.cuda.synchronize if device == "cuda" else lambda: None,
    )
