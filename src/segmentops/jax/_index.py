# SPDX-License-Identifier: Apache-2.0
"""The values of an idx that is at hand: sorted, and in [0, M], M being padding.

An array of JAX does not change, so the verdict is kept with its smallest and largest value, by identity, and dies with
the array. Nothing else that derives from idx is kept.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _process
from ._arguments import narrow
from ._compat import replaying

# id -> (weak reference, last value) of arrays that are sorted and not negative
_verdicts: dict[int, tuple[Any, int]] = {}
_said: list[bool] = _process.kept("eager padding was named", list)


def check(op: str, idx: Any, m: int) -> None:
    """Raise ValueError unless idx is sorted and its values lie in [0, m]."""
    entry = _verdicts.get(id(idx))
    if entry is not None and entry[0]() is idx and entry[1] <= m:
        if entry[1] == m:
            _say_that_it_is_padding(op, idx, m)
        return
    if isinstance(idx, jax.Array) and not idx.is_fully_addressable:  # parts of it are in other processes
        return
    values = np.asarray(idx)
    if not len(values):
        return
    if values[0] < 0 or values[-1] > m or (values[1:] < values[:-1]).any():
        if replaying():
            return
        raise ValueError(_explain(op, values, m))
    if isinstance(idx, jax.Array):
        _remember(idx, int(values[-1]))
    if values[-1] == m:
        _say_that_it_is_padding(op, values, m)


def _say_that_it_is_padding(op: str, idx: Any, m: int) -> None:
    """Warn, once in a process. A compiled program has shapes to fill; an eager call is often off by one."""
    if _said or jax.config.jax_disable_jit or replaying():  # where compiled code would be, which may have padding
        return
    _said.append(True)
    count = int((np.asarray(idx) == m).sum())
    warnings.warn(
        f"{op}: {count} of {len(idx)} elements have idx = num_segments = {m}, which is padding: they belong to no "
        f"segment, and their results are 0. If segments are numbered from 0 to {m}, num_segments is {m + 1}. If it is "
        "padding, ignore this: it is said once in a process.",
        stacklevel=5,  # of whoever calls the public function
    )


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
