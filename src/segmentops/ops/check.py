# SPDX-License-Identifier: Apache-2.0
"""What arrays must have to be arguments of an operation: dtypes and shapes, for arrays of any framework.

An array is anything with `dtype` and `shape`. The messages name the op, the argument, what was expected, what came and
what to do. They contain the words that programs match on: num_segments, int32, 1-D, negative, range.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from .table import Operation

FLOATS = "float32, float64, float16 or bfloat16"
MOST = 2**47  # no address space has room for more rows


def number(name: str, num_segments: Any) -> int:
    """num_segments as an int."""
    if isinstance(num_segments, int) and not isinstance(num_segments, bool):
        m = num_segments
    elif isinstance(num_segments, bool) or "bool" in str(getattr(num_segments, "dtype", "")):  # of any framework
        raise TypeError(f"{name}: num_segments must be an int, got the bool {num_segments}")
    else:
        try:
            m = operator.index(num_segments)
        except (TypeError, RuntimeError):  # what torch raises for some tensors
            raise TypeError(
                f"{name}: num_segments must be an int, got {type(num_segments).__name__} {num_segments!r}"
            ) from None
    if m < 0:
        raise ValueError(f"{name}: num_segments must not be negative, got {m}")
    if m > MOST:
        raise ValueError(f"{name}: num_segments must be at most 2**47, got {m}")
    return m


def check(
    name: str,
    op: Operation,
    labels: Sequence[str],
    arrays: Sequence[Any],
    idx: Any,
    m: Any,
    floats: Collection[Any],
    indices: Collection[Any],
    convert: str,
    promotion: str,
    differ: Callable[[Any, Any], bool] = operator.ne,
) -> None:
    """Raise ValueError for a dtype or a shape that does not fit the operation.

    `labels` are the public names of the operands; `floats` and `indices` the dtypes of a framework; `convert` is how an
    array, {0}, is converted to a dtype, {1}, there, `promotion` what to do about operands of different dtypes.
    """
    first = arrays[0]
    for label, array in zip(labels, arrays, strict=True):
        if array.dtype not in floats:
            cure = "" if "complex" in str(array.dtype) else f". Convert it with {convert.format(label, 'float32')}"
            raise ValueError(f"{name}: {label} must be {FLOATS}, got {array.dtype}{cure}")
        if array.dtype != first.dtype:
            raise ValueError(
                f"{name}: {label} must have the dtype of {labels[0]}, {first.dtype}, got {array.dtype}. {promotion}"
            )
    if idx.dtype not in indices:
        raise ValueError(
            f"{name}: idx must be int32 or int64, got {idx.dtype}. Convert it with {convert.format('idx', 'int32')}"
        )
    if len(idx.shape) != 1:
        raise ValueError(f"{name}: idx must be 1-D, one segment number per element, got shape {tuple(idx.shape)}")
    for operand, label, array in zip(op.operands, labels, arrays, strict=True):
        if operand.lead == "m" and not operand.trail and len(array.shape) > 1:  # only a product has such an operand
            raise ValueError(
                f"{name}: {label} must be 1-D, one scalar per segment, of shape (M,), got {tuple(array.shape)}. "
                f"For one row per segment write {labels[0]} * {label}[idx]"
            )
    check_shapes(name, op, labels, arrays, idx, m, differ)


def check_shapes(
    name: str,
    op: Operation,
    labels: Sequence[str],
    arrays: Sequence[Any],
    idx: Any,
    m: Any,
    differ: Callable[[Any, Any], bool] = operator.ne,
) -> None:
    """Raise ValueError for a shape that does not fit the operation, the 1-D idx and the number of segments.

    `differ` says whether two sizes, or two tuples of them, differ.
    """
    given = list(zip(op.operands, labels, [tuple(a.shape) for a in arrays], strict=True))
    for operand, label, shape in given:
        dims = (operand.lead.upper(), *(t.upper() for t in operand.trail))
        if op.matrices or not operand.trail:
            if len(shape) != len(dims):
                written = ", ".join(dims) + "," * (len(dims) == 1)
                raise ValueError(f"{name}: {label} must be {len(dims)}-D, of shape ({written}), got {shape}")
        elif not shape:
            raise ValueError(f"{name}: {label} must have a row per element, shape (N, ...), got a 0-D array")
    for operand, label, shape in given:  # before anything about idx
        if operand.lead == "m" and differ(shape[0], m):
            raise ValueError(
                f"{name}: {label} must have a row per segment, num_segments = {m}, got shape {shape}. "
                f"Is num_segments {label}.shape[0]?"
            )
    for operand, label, shape in given:
        if operand.lead == "n" and differ(shape[0], idx.shape[0]):
            raise ValueError(
                f"{name}: {label} and idx must have one row per element, got {label} of shape {shape} "
                f"and idx of shape {tuple(idx.shape)}"
            )
    bound: dict[str, tuple[str, Any]] = {}
    for operand, label, shape in given:
        if op.matrices:
            sizes = list(zip(operand.trail, shape[1:], strict=True))
        else:
            sizes = [("k", shape[1:])] if operand.trail else []
        for letter, size in sizes:
            other, expected = bound.setdefault(letter, (label, size))
            if differ(size, expected):
                shapes = ", ".join(f"{each} {its}" for _, each, its in given)
                raise ValueError(f"{name}: {label} must fit {other}, got shapes {shapes}")


def fill(name: str, value: Any) -> None:
    """What an empty segment of a selection gets."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: fill must be a number, got {type(value).__name__}")
