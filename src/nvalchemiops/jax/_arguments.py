# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that users pass: everything but the values of idx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _shapes
from ..algebra import Operation
from ._compat import Tracer

FLOATS = frozenset(map(jnp.dtype, ("float32", "float64", "float16", "bfloat16")))
INDICES = frozenset(map(jnp.dtype, ("int32", "int64")))


def check(name: str, op: Operation, labels: Sequence[str], arrays: Sequence[Any], idx: Any, num_segments: Any) -> int:
    """num_segments as an int; raises TypeError or ValueError for what does not fit the operation.

    `labels` are the public names of the operands.
    """
    for label, array in zip((*labels, "idx"), (*arrays, idx), strict=True):
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise TypeError(f"{name}: {label} must be a jax.Array or numpy.ndarray, got {type(array).__name__}")
    if isinstance(num_segments, Tracer):
        raise TypeError(
            f"{name}: num_segments must be an int, got a traced value: it is part of the shape of the program. Use "
            "static_argnames='num_segments' in jax.jit, or close over the number."
        )
    m = _shapes.number(name, num_segments)
    _shapes.check(name, op, labels, arrays, idx, m, FLOATS, INDICES, "idx.astype(jnp.int32)")
    return m


def wide(array: Any) -> Any:
    """The array in a dtype that the operations have: half precision in float32."""
    if array.dtype.itemsize == 2:
        return array.astype(jnp.float32)
    return array if isinstance(array, jax.Array) else jnp.asarray(array)
