# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that users pass: everything but the values of idx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..ops import check as shapes
from ..ops.table import Operand, Operation
from ._compat import check_value, differ, is_dynamo_compiling

# The dtypes of the data, and in which each keeps by-products: 1 / (out count) is often no number of half precision.
KEPT = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
FLOATS = shapes.FLOATS  # in words
INDICES = (torch.int32, torch.int64)


def dtype_of(operand: Operand, dtype: torch.dtype) -> torch.dtype:
    """The dtype of an operand or a result of an operation on data of dtype `dtype`."""
    if operand.dtype:
        return torch.int64
    return KEPT[dtype] if operand.by_product else dtype


def stands_in(argument: Any) -> bool:
    """Whether it is not a tensor, but says what functions of torch do with it, as the proxies of `torch.fx` do."""
    return not isinstance(argument, Tensor) and hasattr(type(argument), "__torch_function__")


def segments(name: str, num_segments: Any) -> Any:
    """num_segments as an int (or SymInt)."""
    if isinstance(num_segments, torch.SymInt) or is_dynamo_compiling() and type(num_segments) is int:
        # perhaps known at run time only, so no branch on it
        check_value(num_segments >= 0, f"{name}: num_segments must not be negative")
        return num_segments
    if isinstance(num_segments, Tensor) and num_segments.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"{name}: num_segments must be an int, got a tensor on {num_segments.device}, whose value would cost a "
            "synchronisation. Keep the number of segments as a Python int, or pass int(num_segments) yourself."
        )
    return shapes.number(name, num_segments)


def check(name: str, op: Operation, labels: Sequence[str], tensors: Sequence[Any], idx: Any, num_segments: Any) -> Any:
    """num_segments as an int; raises TypeError or ValueError for what does not fit the operation.

    `labels` are the public names of the operands.
    """
    for label, tensor in zip((*labels, "idx"), (*tensors, idx), strict=True):
        if not isinstance(tensor, Tensor):
            array = isinstance(tensor, (list, tuple)) or hasattr(type(tensor), "__array__")
            cure = f". Convert it with torch.as_tensor({label})" if array else ""
            raise TypeError(f"{name}: {label} must be a torch.Tensor, got {type(tensor).__name__}{cure}")
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "a nested tensor" if tensor.is_nested else f"one of layout {tensor.layout}: pass {label}.to_dense()"
            raise ValueError(f"{name}: {label} must be a dense tensor, got {kind}")
    m = segments(name, num_segments)
    x = tensors[0]
    promotion = f"Convert one, as in {labels[-1]}.to({labels[0]}.dtype), also under autocast."
    shapes.check(name, op, labels, tensors, idx, m, KEPT, INDICES, "{}.to(torch.{})", promotion, differ)
    # M = 0 only with N = 0; not asked where m may be known at run time only.
    if not is_dynamo_compiling() and isinstance(m, int) and m == 0 and idx.shape[0] != 0:
        raise ValueError(f"{name}: num_segments is 0, so no idx is in range, but there are {idx.shape[0]} elements")
    for label, tensor in zip((*labels[1:], "idx"), (*tensors[1:], idx), strict=True):
        if tensor.device != x.device:
            raise ValueError(f"{name}: {label} must be on the device of {labels[0]}, {x.device}, got {tensor.device}")
    return m
