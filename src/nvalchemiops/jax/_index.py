# SPDX-License-Identifier: Apache-2.0
"""The values of an idx that is at hand: sorted, and in [0, M], M being padding.

An array of JAX does not change, so the verdict is kept with its smallest and largest value, by identity, and dies with
the array. Nothing else that derives from idx is kept.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._arguments import narrow

# id -> (weak reference, last value) of arrays that are sorted and not negative
_verdicts: dict[int, tuple[Any, int]] = {}


def check(op: str, idx: Any, m: int) -> None:
    """Raise ValueError unless idx is sorted and its values lie in [0, m]."""
    entry = _verdicts.get(id(idx))
    if entry is not None and entry[0]() is idx and entry[1] <= m:
        return
    if isinstance(idx, jax.Array) and not idx.is_fully_addressable:  # parts of it are in other processes
        return
    values = np.asarray(idx)
    if not len(values):
        return
    if values[0] < 0 or values[-1] > m or (values[1:] < values[:-1]).any():
        raise ValueError(_explain(op, values, m))
    if isinstance(idx, jax.Array):
        _remember(idx, int(values[-1]))


def placed(idx: Any) -> jax.Array:
    """idx as an array of JAX."""
    return idx if isinstance(idx, jax.Array) else jnp.asarray(narrow(idx))


def _remember(idx: jax.Array, last: int) -> None:
    key = id(idx)

    def forget(ref: Any) -> None:
        entry = _verdicts.get(key)
        if entry is not None and entry[0] is ref:  # a newer one may be there already
            del _verdicts[key]

    _verdicts[key] = (weakref.ref(idx, forget), last)


def _explain(op: str, values: np.ndarray, m: int) -> str:
    def first(wrong: np.ndarray) -> int | None:
        return int(np.argmax(wrong)) if wrong.any() else None

    allowed = f"{op}: idx must have values in the range [0, num_segments], num_segments = {m} being padding, but"
    if (i := first(values < 0)) is not None:
        return f"{allowed} idx[{i}] = {values[i]} is negative. Give padding the number {m}, at the end."
    if (i := first(values > m)) is not None:
        return f"{allowed} idx[{i}] = {values[i]}. Is num_segments too small?"
    i = int(np.argmax(values[1:] < values[:-1])) + 1
    return (
        f"{op}: idx must be sorted, but idx[{i}] = {values[i]} comes after idx[{i - 1}] = {values[i - 1]}. "
        "Sort once and permute once: order = jnp.argsort(idx, stable=True); idx, x = idx[order], x[order]"
    )
