# SPDX-License-Identifier: Apache-2.0
"""What an operation becomes in a program: a call of the engine (CPU), of Warp's kernels (CUDA), else XLA's own ops.

The engine's functions are XLA FFI handlers here: compiled code that XLA calls with its own buffers and threads, with
no Python and no GIL. `_cuda` has the calls of kernels.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from .. import _building, _process, native
from ..native import _xla
from ..native._engine import HALF_TABLES, TABLES
from ..ops.abi import after_results, table_of
from ..ops.table import Operand, Operation
from . import _compose
from ._arguments import dtype_of

_PREFIX = "segmentops_segmented_"
_warned: set[str] = _process.kept("reasons given", set)
_registered: dict[str, tuple[str, ...]] = _process.kept("tables of XLA's handlers", dict)
_SUFFIXES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def on_xla(op: Operation) -> Callable[..., list[Any]]:
    """The operation as XLA's own ops."""

    def lower(*args: Any, m: int) -> list[Any]:
        *tensors, idx = args
        return _compose.composed(op.name, _compose.XLA, tuple(tensors), idx, m)

    return lower


def on_cpu(op: Operation) -> Callable[..., list[Any]]:
    """The operation as a call of the engine; as XLA's own ops if there is none."""
    otherwise = on_xla(op)

    def lower(*args: Any, m: int) -> list[Any]:
        *tensors, idx = args
        suffix = _SUFFIXES[str(tensors[0].dtype)]
        if not register(table_of(op.name, suffix)):
            return otherwise(*args, m=m)
        return _call(op, tensors, idx, m, f"{_PREFIX}{op.name}_{suffix}")

    return lower


def on_cuda(op: Operation) -> Callable[..., list[Any]]:
    """The operation as launches of kernels; as XLA's own ops where they cannot serve."""
    otherwise = on_xla(op)

    def lower(*args: Any, m: int) -> list[Any]:
        from ..kernels._packed import NEEDS  # imports Warp
        from . import _cuda

        *tensors, idx = args
        if not _cuda.devices():
            _warn("device", f"a program is compiled for CUDA, but Warp finds no CUDA device. {NEEDS}")
        elif not all(isinstance(d, int) for a in args for d in a.shape):
            _warn("symbolic", "a program for CUDA has symbolic dimensions")
        elif not _cuda.fits(op.name, tensors, idx, m):
            _warn("large", "a program for CUDA has arrays of more than 2**31 scalars")
        else:
            return _cuda.call(op.name, tensors, idx, m)
        return otherwise(*args, m=m)

    return lower


def _call(op: Operation, tensors: Sequence[Any], idx: Any, m: int, target: str) -> list[Any]:
    n, dtype = idx.shape[0], tensors[0].dtype
    results = (*op.results, *(scratch for scratch in after_results(op.name) if scratch))
    shapes = replace(op, results=results).result_shapes([t.shape for t in tensors], n, m)
    outs = [jax.ShapeDtypeStruct(s, dtype_of(r, dtype, n)) for s, r in zip(shapes, results, strict=True)]
    return jax.ffi.ffi_call(target, outs)(*tensors, idx, sizes=_sizes(op))[: len(op.results)]


def _sizes(op: Operation) -> np.ndarray:
    """Where a handler finds n, m, k and j in the shapes of operands and results: see xla_handler.h."""
    index = Operand("idx", "n", ())
    found: dict[str, int] = {}
    for b, operand in enumerate((*op.operands, index, *op.results)):
        found.setdefault(operand.lead, 8 * b)
        if operand.trail:
            found.setdefault(operand.trail[-1], 8 * b + len(operand.trail))
    return np.array([found[letter] for letter in "nmkj" if letter in found], np.int64)


def register(table: str) -> tuple[str, ...]:
    """Compile the handlers of a table and make them known to XLA: their names, none if that fails."""
    with _building.building():  # of two builds of a table Warp unloads one, with the code that XLA calls
        return _register(table)


@functools.cache
def _register(table: str) -> tuple[str, ...]:
    if table in _registered:
        return _registered[table]
    try:
        addresses = _xla.handlers(table)
    except native.NativeBuildError as error:
        _warn("engine", str(error))
        return ()
    for name, address in addresses.items():
        jax.ffi.register_ffi_target(_PREFIX + name, jax.ffi.pycapsule(address), platform="cpu")
    _registered[table] = tuple(_PREFIX + name for name in addresses)
    return _registered[table]


def _warn(kind: str, reason: str) -> None:
    """Say once for each kind of reason why XLA's own ops are used."""
    if kind in _warned:
        return
    _warned.add(kind)
    warnings.warn(f"segmentops.jax runs on XLA's own ops, slower and less accurate: {reason}", stacklevel=2)


def ffi_targets(half: bool = False) -> tuple[str, ...]:
    """Names of the XLA FFI handlers that exported CPU programs call, which are compiled and registered first.

    A program that was exported with `jax.export` names them. Tell the export that they are stable, and call this
    function before the program runs in another process.

    Parameters
    ----------
    half : bool
        Also those for float16 and bfloat16 data, which are compiled apart.

    Returns
    -------
    tuple of str
        Empty if the native code cannot be compiled: nothing calls a handler then.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jax import export
    >>> from segmentops.jax import ffi_targets
    >>> from segmentops.jax.segment_ops import segmented_sum
    >>> function = jax.jit(lambda x, idx: segmented_sum(x, idx, 2))
    >>> checks = [export.DisabledSafetyCheck.custom_call(name) for name in ffi_targets()]
    >>> arguments = jnp.ones(3), jnp.array([0, 0, 1], jnp.int32)
    >>> exported = export.export(function, disabled_checks=checks)(*arguments)
    >>> exported.call(*arguments).tolist()
    [2.0, 1.0]
    """
    return tuple(sorted(name for table in TABLES + HALF_TABLES * half for name in register(table)))
