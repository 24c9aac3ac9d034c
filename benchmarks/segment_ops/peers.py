# SPDX-License-Identifier: Apache-2.0
"""Other libraries' segment operations, where they are installed: a column each, on torch tensors on the CPU or CUDA."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

REDUCTIONS = {"sum": "sum", "mean": "mean", "max_norm": "max"}


@functools.cache
def library(name: str) -> Any:
    """None, said once, if it is not installed."""
    try:
        return importlib.import_module({"torch_geometric": "torch_geometric.utils"}.get(name, name))
    except ModuleNotFoundError as error:
        print(f"{name}: skipped, its column stays empty ({error})")
        return None


def functions(operation: str, order: str, like: Tensor) -> dict[str, Callable[..., Any]]:
    """By library, a function `(x, idx, m)` of torch tensors like this one, where the library has this operation."""
    how = REDUCTIONS.get(operation)
    if how is None:
        return {}

    def prepared(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=1) if how == "max" and x.dim() > 1 else x

    def scatter(x: Tensor, idx: Tensor, m: int) -> Tensor:
        return library("torch_geometric").scatter(prepared(x), idx, 0, m, how)

    def aggregate(x: Tensor, idx: Tensor, m: int) -> Any:
        return library("numpy_groupies").aggregate(idx.numpy(), prepared(x).numpy(), how, size=m, axis=0)

    found: dict[str, Callable[..., Any]] = {"torch_geometric": scatter}
    if order == "forward" and not like.is_cuda and like.dtype != torch.bfloat16:
        found["numpy_groupies"] = aggregate
    return {name: function for name, function in found.items() if library(name)}
