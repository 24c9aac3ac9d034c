# SPDX-License-Identifier: Apache-2.0
"""The operations by Warp's kernels, as functions that XLA calls: what a compiled program runs on CUDA.

`warp.jax_callable` wraps the launches of `segmentops.kernels`, which know nothing of JAX. XLA calls Python once for
each operation, or once in all: the launches are declared capturable (graph mode JAX), so XLA may record them in the
CUDA graphs that it makes of a program. For that nothing may be allocated or compiled in a call: scratch is one more
result of the call, and the kernels are loaded when the program is lowered. Both come out of a rehearsal, the same
launches with a `Place` that launches nothing.

Called from a program for the CPU, the functions run the kernels there, which is how the tests see them without a GPU.
A program for CUDA cannot be exported with them: a call means something in its own process only.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import warp as wp

from .. import _building
from ..kernels._packed import loading
from ..kernels.launch import MAX_SCALARS, THREADS, Place, Rows
from ..kernels.operations import LAUNCHES
from ..ops.table import OPERATIONS, Operand
from ._arguments import dtype_of

DTYPES = {
    "float16": wp.float16,
    "bfloat16": wp.bfloat16,
    "float32": wp.float32,
    "float64": wp.float64,
    "int32": wp.int32,
    "int64": wp.int64,
}
_SIZES = {wp.int32: 4, wp.float64: 8, wp.vec2d: 16}  # of scratch
_WORD = 4
_ALIGNMENT = 16


class Memory(NamedTuple):
    """Where the memory of `Rows` is; XLA keeps it while a call runs."""

    device: Place


class Scratch:
    """Hands out parts of the `size` bytes at `pointer`; without a size, counts what is asked for."""

    def __init__(self, pointer: int = 0, size: int | None = None) -> None:
        self.pointer, self.size, self.used = pointer, size, 0

    def __call__(self, place: Place, shape: tuple[int, ...], dtype: Any) -> Rows:
        size = _SIZES[dtype]
        strides = (shape[1] * size, size) if len(shape) == 2 else (size,)
        found = Rows(Memory(place), self.pointer + self.used, dtype, shape, strides)
        self.used += -(-math.prod(shape) * size // _ALIGNMENT) * _ALIGNMENT
        if self.size is not None and self.used > self.size:
            raise MemoryError(f"{self.size} bytes of scratch are too few")
        return found


def devices() -> Sequence[Any]:
    """The devices on which a program for CUDA may run."""
    _building.initialise_quietly()
    return wp.get_cuda_devices() if wp.is_cuda_available() else ()


def _scalar(operand: Operand, dtype: str) -> Any:
    """Warp's type of the scalars of an operand; positions of elements have 32 bits, since the kernels count so."""
    return DTYPES[str(jnp.dtype(dtype_of(operand, dtype, 0)))]


def _dims(operand: Operand, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in which kernels see an operand: positions (m,), matrices (m, k, j), all else (rows, columns)."""
    if operand.dtype and not operand.trail or len(operand.trail) == 2:
        return tuple(shape)
    return shape[0], math.prod(shape[1:])


def _run(name: str, arrays: Sequence[Any], idx: Any, place: Place) -> None:
    """The launches of an operation on operands and results, which are given as Warp arrays or as `Rows`."""
    op = OPERATIONS[name]
    every = (*op.operands, *op.results)
    m = next(a.shape[0] for a, o in zip(arrays, every, strict=True) if o.lead == "m")
    LAUNCHES[name](_rows(idx, place), m, *[_rows(a, place) for a in arrays])


def _rows(array: Any, place: Place) -> Rows:
    if isinstance(array, Rows):
        return array
    return Rows(Memory(place), array.ptr or 0, array.dtype, tuple(array.shape), tuple(array.strides))


@functools.cache
def callable_of(name: str, dtype: str, index_dtype: str) -> Callable[..., Any]:
    """What XLA calls for operation `name` on data and idx of these dtypes: (*operands, idx) -> (*results, scratch)."""
    op = OPERATIONS[name]

    def run(*arrays: wp.array) -> None:
        *data, scratch = arrays
        idx = data.pop(len(op.operands))
        _run(name, data, idx, Place(idx.device, None, Scratch(scratch.ptr or 0, scratch.size * _WORD)))

    def annotation(operand: Operand) -> Any:
        ndim = 3 if len(operand.trail) == 2 else 1 if operand.dtype and not operand.trail else 2
        return wp.array(dtype=_scalar(operand, dtype), ndim=ndim)

    types = {o.name: annotation(o) for o in op.operands}
    types["idx"] = wp.array(dtype=DTYPES[index_dtype], ndim=1)
    types |= {r.name: annotation(r) for r in op.results}
    types["scratch"] = wp.array(dtype=wp.int32, ndim=1)
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__annotations__ = types
    run.__signature__ = inspect.Signature([inspect.Parameter(n, positional) for n in types])  # type: ignore[attr-defined]
    run.__name__ = run.__qualname__ = f"segmented_{name}_{dtype}_{index_dtype}"
    return wp.jax_callable(
        run,
        num_outputs=len(op.results) + 1,
        graph_mode=wp.JaxCallableGraphMode.JAX,
        module_preload_mode=wp.JaxModulePreloadMode.NONE,
    )


def fits(name: str, tensors: Sequence[Any], idx: Any, m: int) -> bool:
    """Whether the kernels take arrays of these sizes: they count in 32 bits."""
    widths = [max(1, math.prod(d)) for d in OPERATIONS[name].dims([t.shape for t in tensors]).values()]
    return max(idx.shape[0], m) * math.prod(widths) <= MAX_SCALARS


def call(name: str, tensors: Sequence[Any], idx: Any, m: int) -> list[Any]:
    """Operation `name` in a program that is being traced; the kernels are compiled and loaded first."""
    op = OPERATIONS[name]
    dtype = str(tensors[0].dtype)
    shapes = op.result_shapes([t.shape for t in tensors], idx.shape[0], m)
    inputs = [t.reshape(_dims(o, t.shape)) for o, t in zip(op.operands, tensors, strict=True)]
    dims = {r.name: _dims(r, shape) for r, shape in zip(op.results, shapes, strict=True)}
    every = list(zip((*op.operands, *op.results), (*(t.shape for t in inputs), *dims.values()), strict=True))
    types = [(_scalar(o, dtype), shape) for o, shape in every]
    dims["scratch"] = (_rehearse(name, types, (DTYPES[str(idx.dtype)], idx.shape)) // _WORD,)
    outs = callable_of(name, dtype, str(idx.dtype))(*inputs, idx, output_dims=dims)
    return [out.reshape(shape) for out, shape in zip(outs, shapes, strict=False)]


def _rehearse(name: str, types: Sequence[tuple[Any, Any]], index: tuple[Any, Any]) -> int:
    """Load the kernels that a call will launch, on each device; the bytes of scratch that it will use."""
    needed = 0
    for device in devices():
        # Empty; but Warp asks for the module of a callable in each call, for blocks of the default size.
        scratch = Scratch()
        place = Place(device, None, scratch, True)
        with loading(place):
            wp.get_module(__name__).load(device, 1 if device.is_cpu else THREADS)

        def rows(kind: tuple[Any, Any], place: Place = place) -> Rows:
            dtype, shape = kind
            size = wp.types.type_size_in_bytes(dtype)
            strides = tuple(math.prod(shape[d + 1 :]) * size for d in range(len(shape)))
            return Rows(Memory(place), 0, dtype, tuple(shape), strides)

        _run(name, [rows(t) for t in types], rows(index), place)
        needed = max(needed, scratch.used)
    return needed
