# SPDX-License-Identifier: Apache-2.0
"""What an operation becomes in a program: a call of the engine (CPU), of Warp's kernels (CUDA), else XLA's own ops.

The engine's functions are XLA FFI handlers here: compiled code that XLA calls with its own buffers and threads, with
no Python and no GIL. `_cuda` has the calls of kernels.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import native
from ..algebra import OPERATIONS, Operation
from ..native import _xla
from ..native._signatures import takes_idx
from . import _batching, _compose

_PREFIX = "nvalchemiops_segmented_"
_SUFFIXES = {"float32": "_f32", "float64": "_f64"}

# What the engine takes after an operation's results: scratch, as (leading dimension, whether k follows, dtype).
_SCRATCH: dict[str, Sequence[tuple[bool, str]]] = {
    "spread": ((True, ""),),
    "rms_norm_double_backward": ((False, "float64"), (False, "int32")),
}


def on_xla(op: Operation) -> Callable[..., list[Any]]:
    """The operation as XLA's own ops."""

    def lower(*args: Any, m: int) -> list[Any]:
        *tensors, idx = args
        return _compose.composed(op.name, _compose.XLA, tuple(tensors), idx, m)

    return lower


def on_cpu(op: Operation) -> Callable[..., list[Any]]:
    """The operation as a call of the engine; as XLA's own ops if there is none, or a dimension is symbolic."""
    otherwise = on_xla(op)

    def lower(*args: Any, m: int) -> list[Any]:
        *tensors, idx = args
        if not _static(args) or not register(op.name):
            return otherwise(*args, m=m)
        return _call(op, tensors, idx, m, target(op.name, tensors[0].dtype))

    return lower


def on_cuda(op: Operation) -> Callable[..., list[Any]]:
    """The operation as launches of kernels; as XLA's own ops without a device for them, or for arrays too large."""
    otherwise = on_xla(op)

    def lower(*args: Any, m: int) -> list[Any]:
        from . import _cuda  # imports Warp

        *tensors, idx = args
        if not _cuda.devices():
            _warn("a program is compiled for CUDA, but Warp finds no CUDA device")
        elif _static(args) and _cuda.fits(op.name, tensors, idx, m):
            return _cuda.call(op.name, tensors, idx, m)
        return otherwise(*args, m=m)

    return lower


def _static(args: Sequence[Any]) -> bool:
    """Whether all dimensions are numbers."""
    return all(isinstance(d, int) for a in args for d in a.shape)


def _call(op: Operation, tensors: Sequence[Any], idx: Any, m: int, name: str) -> list[Any]:
    n = idx.shape[0]
    dims = op.dims([t.shape for t in tensors])
    dtype = tensors[0].dtype
    shapes = op.result_shapes([t.shape for t in tensors], n, m)
    outs = [
        jax.ShapeDtypeStruct(shape, _batching.position_dtype(n) if r.dtype else dtype)
        for shape, r in zip(shapes, op.results, strict=True)
    ]
    outs += [
        jax.ShapeDtypeStruct((m, *(dims["k"] if columns else ())), scratch or dtype)
        for columns, scratch in _SCRATCH.get(op.name, ())
    ]
    widths = [math.prod(dims[letter]) for letter in ("k", "j") if letter in dims]
    arrays = [*tensors, idx] if takes_idx(op.name) else tensors
    sizes = np.array([n, m, *widths, n * math.prod(widths)], np.int64)
    return jax.ffi.ffi_call(name, outs)(*arrays, sizes=sizes)[: len(op.results)]


def target(name: str, dtype: Any) -> str:
    """The name under which XLA knows the handler of an operation."""
    return _PREFIX + name + _SUFFIXES[str(dtype)]


@functools.cache
def register(name: str) -> bool:
    """Compile the handlers of the table that operation `name` is in and make them known to XLA."""
    table = _xla.table_of(name)
    return table is not None and _register_table(table)


@functools.cache
def _register_table(table: str) -> bool:
    try:
        addresses = _xla.handlers(table)
    except native.NativeBuildError as error:
        _warn(str(error))
        return False
    for name, address in addresses.items():
        jax.ffi.register_ffi_target(_PREFIX + name, jax.ffi.pycapsule(address), platform="cpu")
    return True


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(f"nvalchemiops.jax runs on XLA's own ops, slower and less accurate: {reason}", stacklevel=2)


def ffi_targets() -> tuple[str, ...]:
    """Names of the XLA FFI handlers that exported CPU programs call, which are compiled and registered first.

    A program that was exported with `jax.export` names them. Tell the export that they are stable, and call this
    function before the program runs in another process.

    Returns
    -------
    tuple of str
        Empty if the native code cannot be compiled: nothing calls a handler then.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jax import export
    >>> from nvalchemiops.jax import ffi_targets
    >>> from nvalchemiops.jax.segment_ops import segmented_sum
    >>> function = jax.jit(lambda x, idx: segmented_sum(x, idx, 2))
    >>> checks = [export.DisabledSafetyCheck.custom_call(name) for name in ffi_targets()]
    >>> arguments = jnp.ones(3), jnp.array([0, 0, 1], jnp.int32)
    >>> exported = export.export(function, disabled_checks=checks)(*arguments)
    >>> exported.call(*arguments).tolist()
    [2.0, 1.0]
    """
    names = [name for name in OPERATIONS if register(name)]
    return tuple(sorted(_PREFIX + name + suffix for name in names for suffix in _SUFFIXES.values()))
