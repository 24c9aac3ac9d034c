# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that users pass: everything but the values of idx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..ops import check as shapes
from ..ops.table import Operand, Operation
from ._compat import Tracer, is_symbolic_dim

FLOATS = frozenset(map(jnp.dtype, ("float32", "float64", "float16", "bfloat16")))
INDICES = frozenset(map(jnp.dtype, ("int32", "int64")))
LARGEST = 2**31 - 1

_SCRATCH = {"f64": jnp.float64, "i32": jnp.int32}


def position_dtype(n: Any) -> Any:
    """The integers that positions of n elements are kept in."""
    return jnp.int64 if isinstance(n, int) and n > LARGEST else jnp.int32


def dtype_of(operand: Operand, dtype: Any, n: Any) -> Any:
    """The dtype of an operand, result or scratch of an operation on n elements with data of dtype `dtype`."""
    if operand.dtype:
        return position_dtype(n) if operand.dtype == "i64" else _SCRATCH[operand.dtype]
    half = jnp.dtype(dtype).itemsize == 2  # 1 / (out count) is often no number of half precision
    return jnp.float32 if operand.by_product and half else dtype


def narrow(idx: Any) -> Any:
    """idx in integers that JAX's own ops keep: without x64 int32, where a number too large stays out of range."""
    if idx.dtype.itemsize == 4 or jax.config.jax_enable_x64:
        return idx
    if isinstance(idx, np.ndarray):
        return jnp.asarray(np.clip(idx, -1, LARGEST), jnp.int32)
    halves = jax.lax.bitcast_convert_type(idx, jnp.int32)  # JAX narrows what it is compared with
    low, high = halves[..., 0], halves[..., 1]
    return jnp.where(high == low >> 31, low, jnp.where(high < 0, -1, LARGEST))


def given(array: Any) -> Any:
    """The array that an object stands for which JAX takes for one; anything else as it is."""
    convert = getattr(array, "__jax_array__", None)
    return array if convert is None or isinstance(array, jax.Array) else convert()


def placed(array: Any) -> Any:
    """An array of NumPy's as one of JAX's, float64 as float32 without x64; anything else as it is."""
    array = given(array)
    return jnp.asarray(array) if isinstance(array, np.ndarray) and array.dtype in FLOATS else array


def check(name: str, op: Operation, labels: Sequence[str], arrays: Sequence[Any], idx: Any, num_segments: Any) -> Any:
    """num_segments, an int or a symbolic dimension; raises TypeError or ValueError for what does not fit the operation.

    `labels` are the public names of the operands.
    """
    for label, array in zip((*labels, "idx"), (*arrays, idx), strict=True):
        if not isinstance(array, (jax.Array, np.ndarray)):
            cure = "" if array is None else f". Convert it with jnp.asarray({label})."
            raise TypeError(f"{name}: {label} must be a jax.Array or numpy.ndarray, got {type(array).__name__}{cure}")
    if isinstance(num_segments, Tracer):
        raise TypeError(
            f"{name}: num_segments must be an int, got a traced value: it is part of the shape of the program. Use "
            "static_argnames='num_segments' in jax.jit, or close over the number."
        )
    m = num_segments if is_symbolic_dim(num_segments) else shapes.number(name, num_segments)
    promotion = f"Convert one, as in {labels[-1]}.astype({labels[0]}.dtype)."
    shapes.check(name, op, labels, arrays, idx, m, FLOATS, INDICES, "{}.astype(jnp.{})", promotion)
    return m
