"""Checks of the arguments that users pass: everything but the values of idx.

The messages name the op, the argument, what was expected, what came and what to do. They contain the
words that programs match on: num_segments, int32, 1-D, negative, range.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..algebra import Operation
from ._compat import Tracer

FLOATS = ("float32", "float64", "float16", "bfloat16")
INDICES = ("int32", "int64")


def segments(name: str, num_segments: Any) -> int:
    """num_segments as an int."""
    if isinstance(num_segments, Tracer):
        raise TypeError(
            f"{name}: num_segments must be an int, got a traced value: it is part of the shape of the program. Use "
            "static_argnames='num_segments' in jax.jit, or close over the number."
        )
    if isinstance(num_segments, (bool, np.bool_)):
        raise TypeError(f"{name}: num_segments must be an int, got the bool {num_segments}")
    try:
        m = operator.index(num_segments)
    except TypeError:
        raise TypeError(
            f"{name}: num_segments must be an int, got {type(num_segments).__name__} {num_segments!r}"
        ) from None
    if m < 0:
        raise ValueError(f"{name}: num_segments must not be negative, got {m}")
    return m


def check(name: str, op: Operation, labels: Sequence[str], arrays: Sequence[Any], idx: Any, num_segments: Any) -> int:
    """num_segments as an int; raises TypeError or ValueError for what does not fit the operation.

    `labels` are the public names of the operands.
    """
    for label, array in zip((*labels, "idx"), (*arrays, idx), strict=True):
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise TypeError(f"{name}: {label} must be a jax.Array or numpy.ndarray, got {type(array).__name__}")
    m = segments(name, num_segments)
    for label, array in zip(labels, arrays, strict=True):
        if str(array.dtype) not in FLOATS:
            raise ValueError(f"{name}: {label} must be one of {', '.join(FLOATS)}, got {array.dtype}")
        if array.dtype != arrays[0].dtype:
            raise ValueError(
                f"{name}: {label} must have the dtype of {labels[0]}, {arrays[0].dtype}, got {array.dtype}"
            )
    if str(idx.dtype) not in INDICES:
        raise ValueError(f"{name}: idx must be int32 or int64, got {idx.dtype}. Convert it with idx.astype(jnp.int32).")
    if idx.ndim != 1:
        raise ValueError(f"{name}: idx must be 1-D, one segment number an element, got shape {idx.shape}")
    _shapes(name, op, labels, arrays, idx, m)
    return m


def _shapes(name: str, op: Operation, labels: Sequence[str], arrays: Sequence[Any], idx: Any, m: int) -> None:
    given = list(zip(op.operands, labels, arrays, strict=True))
    for operand, label, array in given:
        dims = (operand.lead.upper(), *(t.upper() for t in operand.trail))
        if op.matrices or not operand.trail:
            if array.ndim != len(dims):
                raise ValueError(
                    f"{name}: {label} must be {len(dims)}-D, of shape ({', '.join(dims)}), got {array.shape}"
                )
        elif array.ndim == 0:
            raise ValueError(f"{name}: {label} must have a row an element, shape (N, ...), got a 0-D array")
    for operand, label, array in given:  # before anything about idx
        if operand.lead == "m" and array.shape[0] != m:
            raise ValueError(
                f"{name}: {label} must have a row a segment, num_segments = {m}, got shape {array.shape}. "
                f"Is num_segments {label}.shape[0]?"
            )
    n = idx.shape[0]
    for operand, label, array in given:
        if operand.lead == "n" and array.shape[0] != n:
            raise ValueError(
                f"{name}: {label} and idx must have one row an element, got {label} of shape {array.shape} "
                f"and idx of shape {idx.shape}"
            )
    bound: dict[str, tuple[str, Any]] = {}
    for operand, label, array in given:
        if not op.matrices:
            sizes = [("k", array.shape[1:])] if operand.trail else []
        else:
            sizes = [(t, array.shape[1 + i]) for i, t in enumerate(operand.trail)]
        for letter, size in sizes:
            other, expected = bound.setdefault(letter, (label, size))
            if size != expected:
                shapes = ", ".join(f"{lb} {a.shape}" for lb, a in zip(labels, arrays, strict=True))
                raise ValueError(f"{name}: {label} must fit {other}, got shapes {shapes}")


def wide(array: Any) -> Any:
    """The array in a dtype that the operations have: half precision in float32."""
    if array.dtype.itemsize == 2:
        return array.astype(jnp.float32)
    return array if isinstance(array, jax.Array) else jnp.asarray(array)
