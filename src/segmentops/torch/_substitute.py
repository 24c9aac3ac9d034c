# SPDX-License-Identifier: Apache-2.0
"""The engine's functions by Warp's kernels, for a process in which the engine cannot be built.

Called as the engine is, with addresses of arrays on the CPU, so nothing else of the binding has to know. They give the
same bits, more slowly, and copy a whole operand that has strides.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import warp as wp

from .. import _building
from ..kernels.launch import Place, Rows
from ..kernels.operations import LAUNCHES
from ..native._strided import STRIDED, contiguous
from ..ops.abi import arguments
from ..ops.table import OPERATIONS, Operand
from ._arguments import dtype_of
from ._cuda import DTYPES, Memory

_reasons: list[str] = []


def warn(reason: str) -> None:
    """Say why the engine is not used, once: each of its parts may fail."""
    _reasons.append(reason)
    if len(_reasons) == 1:
        warnings.warn(f"segmentops.torch runs on Warp's kernels on the CPU, which is slower: {reason}", stacklevel=2)


def _numbers(address: int, n: int, dtype: Any) -> np.ndarray:
    """Memory as a NumPy array."""
    if not n:
        return np.empty(0, dtype)
    size = n * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def _first_offence(idx: np.ndarray, m: int) -> int:
    """Position of the first value that is out of [0, m), else of the first that is smaller than its predecessor."""
    for bad, offset in (((idx < 0) | (idx >= m), 0), (idx[1:] < idx[:-1], 1)):
        if bad.any():
            return int(bad.argmax()) + offset
    return -1


def function(name: str, dtype: torch.dtype) -> Callable[..., int]:
    """Operation `name` for data of `dtype`, called as the engine's function."""
    op = OPERATIONS[name]
    names = arguments(name)
    launches = LAUNCHES[name]

    def call(*values: Any) -> int:
        named = dict(zip(names, values, strict=True))
        n, m, k, j, mode = (named.get(letter, 0) for letter in ("n", "m", "k", "j", "mode"))
        lengths = {"n": n, "m": m, "k": k, "j": j}
        _building.initialise_quietly()
        place = Place(wp.get_device("cpu"))

        def rows(address: int | None, operand: Operand) -> Rows:
            scalar, size = DTYPES[dtype_of(operand, dtype)]
            lead, *trail = (lengths[letter] for letter in (operand.lead, *operand.trail))
            shape = (lead, *(trail or [1]))
            strides = tuple(size * int(np.prod(shape[d + 1 :])) for d in range(len(shape)))
            return Rows(Memory(None, place), address or 0, scalar, shape, strides)

        def positions(address: int, operand: Operand) -> Rows:  # of int64 the low halves
            shape, strides = ((m, k), (8 * k, 8)) if operand.trail else ((m,), (8,))
            return Rows(Memory(None, place), address or 0, wp.int32, shape, strides)

        operands, rest = list(values[: len(op.operands)]), values[len(op.operands) + 1 :]
        copies = []
        if mode & STRIDED:
            for at, operand in enumerate(op.operands):
                if not operand.by_product:
                    copies.append(contiguous(operands[at], dtype.itemsize))
                    operands[at] = copies[-1].ctypes.data
        idx = _numbers(named["idx"], n, np.int64 if mode & 1 else np.int32)
        if mode & 2:
            found = _first_offence(idx, m)
            if found >= 0:
                return found
        index = Rows(Memory(None, place), idx.ctypes.data, wp.dtype_from_numpy(idx.dtype), (n,), (idx.dtype.itemsize,))
        inputs = [positions(a, o) if o.dtype else rows(a, o) for a, o in zip(operands, op.operands, strict=True)]
        results = list(zip(rest, op.results, strict=False))
        launches(index, m, *inputs, *[positions(a, o) if o.dtype else rows(a, o) for a, o in results])
        for address, operand in results:
            if operand.dtype:  # the kernels wrote the low halves
                found_at = _numbers(address, m * (k if operand.trail else 1), np.int64)
                found_at[:] = found_at.astype(np.int32)
        return -1

    return call
