# SPDX-License-Identifier: Apache-2.0
"""Operands with strides, as the engine takes them (`strided.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

STRIDED = 8  # bit 3 of the mode: the address of each operand that is not a by-product is that of a `strided`
_WORD = ctypes.sizeof(ctypes.c_int64)


def strided(address: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """Where an operand is; strides count scalars. To be kept alive until the engine returns."""
    found = (ctypes.c_int64 * (4 + 2 * len(shape)))(address, len(shape), 0, 0, *shape, *strides)
    found[2] = ctypes.addressof(found) + 4 * _WORD
    found[3] = found[2] + len(shape) * _WORD
    return found


def contiguous(address: int, size: int) -> np.ndarray:
    """A copy in one piece of a `strided` whose scalars have `size` bytes, for what takes no strides."""
    word = ctypes.c_int64 * 4
    memory, dims, *_ = word.from_address(address)
    values = list((ctypes.c_int64 * (4 + 2 * dims)).from_address(address))[4:]
    shape, strides = values[:dims], [size * step for step in values[dims:]]
    if 0 in shape:
        return np.empty(shape, f"u{size}")
    steps = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    first, last = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    buffer = (ctypes.c_char * (last - first + size)).from_address(memory + first)
    return np.ascontiguousarray(np.ndarray(shape, f"u{size}", buffer, -first, strides))
