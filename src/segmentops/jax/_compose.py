# SPDX-License-Identifier: Apache-2.0
"""Operations as compositions: on XLA's own ops, and over other operations beyond the fused orders."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..ops import formulas
from ..ops.table import OPERATIONS
from . import _arrays
from ._arguments import dtype_of, narrow

XLA = formulas.plain(_arrays)


def composed(name: str, P: Any, tensors: tuple[Any, ...], idx: Any, m: int) -> list[Any]:
    """The results of operation `name` over the primitives P; in float64 where JAX has it, rounded once."""
    dtype, n = tensors[0].dtype, idx.shape[0]
    outs = wide(name, P, tensors, idx, m)
    return [in_dtype(o, dtype_of(r, dtype, n)) for o, r in zip(outs, OPERATIONS[name].results, strict=True)]


def wide(name: str, P: Any, tensors: tuple[Any, ...], idx: Any, m: int) -> tuple[Any, ...]:
    """The same, not rounded; `name` may be one of `formulas` that is not an operation."""
    if tensors[0].dtype == jnp.float64 and not jax.config.jax_enable_x64:  # made where it was enabled
        with jax.enable_x64(True):
            return wide(name, P, tensors, idx, m)
    return formulas.composed(name, P, tensors, narrow(idx), m)


def in_dtype(array: Any, dtype: Any) -> Any:
    """Asked for float64, JAX would give float32 without x64."""
    return array if array.dtype == dtype else array.astype(dtype)
