"""Checks of the arguments that users pass: everything but the values of idx.

The messages name the op, the argument, what was expected, what came and what to do. They contain the
words that programs match on: num_segments, int32, 1-D, negative, range.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import Operation

FLOATS = (torch.float32, torch.float64)
INDICES = (torch.int32, torch.int64)


def segments(name: str, num_segments: Any) -> Any:
    """num_segments as an int (or SymInt)."""
    if isinstance(num_segments, (int, torch.SymInt)) and not isinstance(num_segments, bool):
        m = num_segments
    elif isinstance(num_segments, bool):
        raise TypeError(f"{name}: num_segments must be an int, got the bool {num_segments}")
    elif isinstance(num_segments, Tensor) and num_segments.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"{name}: num_segments must be an int, got a tensor on {num_segments.device}, whose value would cost a "
            "synchronisation. Keep the number of segments as a Python int, or pass int(num_segments) yourself."
        )
    else:
        try:
            m = operator.index(num_segments)
        except (TypeError, RuntimeError):
            raise TypeError(
                f"{name}: num_segments must be an int, got {type(num_segments).__name__} {num_segments!r}"
            ) from None
    if m < 0:
        raise ValueError(f"{name}: num_segments must not be negative, got {m}")
    return m


def check(name: str, op: Operation, labels: Sequence[str], tensors: Sequence[Any], idx: Any, num_segments: Any) -> Any:
    """num_segments as an int; raises TypeError or ValueError for what does not fit the operation.

    `labels` are the public names of the operands.
    """
    for label, tensor in zip((*labels, "idx"), (*tensors, idx), strict=True):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {label} must be a torch.Tensor, got {type(tensor).__name__}")
    m = segments(name, num_segments)
    x = tensors[0]
    for label, tensor in zip(labels, tensors, strict=True):
        if tensor.dtype not in FLOATS:
            hint = " Half precision is not supported on this device yet: call .float() first." if tensor.dtype in (
                torch.float16, torch.bfloat16) else ""
            raise ValueError(f"{name}: {label} must be float32 or float64, got {tensor.dtype}.{hint}")
        if tensor.dtype != x.dtype:
            raise ValueError(f"{name}: {label} must have the dtype of {labels[0]}, {x.dtype}, got {tensor.dtype}")
    if idx.dtype not in INDICES:
        raise ValueError(f"{name}: idx must be int32 or int64, got {idx.dtype}. Convert it with idx.to(torch.int32).")
    if idx.dim() != 1:
        raise ValueError(f"{name}: idx must be 1-D, one segment number an element, got shape {tuple(idx.shape)}")
    _shapes(name, op, labels, tensors, idx, m)
    for label, tensor in zip((*labels[1:], "idx"), (*tensors[1:], idx), strict=True):
        if tensor.device != x.device:
            raise ValueError(f"{name}: {label} must be on the device of {labels[0]}, {x.device}, got {tensor.device}")
    return m


def _shapes(name: str, op: Operation, labels: Sequence[str], tensors: Sequence[Any], idx: Any, m: Any) -> None:
    for operand, label, tensor in zip(op.operands, labels, tensors, strict=True):
        dims = (operand.lead.upper(), *(t.upper() for t in operand.trail))
        if op.matrices or not operand.trail:
            if tensor.dim() != len(dims):
                raise ValueError(
                    f"{name}: {label} must be {len(dims)}-D, of shape ({', '.join(dims)}), got {tuple(tensor.shape)}"
                )
        elif tensor.dim() == 0:
            raise ValueError(f"{name}: {label} must have a row an element, shape (N, ...), got a 0-D tensor")
    for operand, label, tensor in zip(op.operands, labels, tensors, strict=True):  # before anything about idx
        if operand.lead == "m" and tensor.shape[0] != m:
            raise ValueError(
                f"{name}: {label} must have a row a segment, num_segments = {m}, got shape {tuple(tensor.shape)}. "
                f"Is num_segments {label}.shape[0]?"
            )
    n = idx.shape[0]
    for operand, label, tensor in zip(op.operands, labels, tensors, strict=True):
        if operand.lead == "n" and tensor.shape[0] != n:
            raise ValueError(
                f"{name}: {label} and idx must have one row an element, got {label} of shape {tuple(tensor.shape)} "
                f"and idx of shape {tuple(idx.shape)}"
            )
    bound: dict[str, tuple[str, Any]] = {}
    for operand, label, tensor in zip(op.operands, labels, tensors, strict=True):
        if not op.matrices:
            sizes = [("k", tuple(tensor.shape[1:]))] if operand.trail else []
        else:
            sizes = [(t, tensor.shape[1 + i]) for i, t in enumerate(operand.trail)]
        for letter, size in sizes:
            other, expected = bound.setdefault(letter, (label, size))
            if size != expected:
                raise ValueError(
                    f"{name}: {label} must fit {other}, got shapes "
                    f"{', '.join(f'{lb} {tuple(t.shape)}' for lb, t in zip(labels, tensors, strict=True))}"
                )
    # M = 0 only with N = 0. (A symbolic m is a guard that a compiled graph would keep.)
    if isinstance(m, int) and m == 0 and n != 0:
        raise ValueError(f"{name}: num_segments is 0, so no idx is in range, but there are {n} elements")
