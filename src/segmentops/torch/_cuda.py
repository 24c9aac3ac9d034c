# SPDX-License-Identifier: Apache-2.0
"""The operations by Warp's kernels: what runs on CUDA tensors.

Nothing is copied whose strides kernels can follow: they read the tensors' own memory, on the current stream of the
first tensor's device. Results and scratch are torch's, so that `torch.cuda.graph` records them; nothing synchronises.
On CPU tensors the same code runs the kernels on the CPU, which is how the tests see it without a GPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import warp as wp
from torch import Tensor

from .. import _building
from ..kernels._packed import NEEDS
from ..kernels.launch import Place, Rows
from ..kernels.operations import LAUNCHES
from ..ops.table import OPERATIONS, Operand
from . import _compat, _memory
from ._arguments import dtype_of

# torch's dtypes as Warp's, and their sizes
DTYPES = {
    torch.float16: (wp.float16, 2),
    torch.bfloat16: (wp.bfloat16, 2),
    torch.float32: (wp.float32, 4),
    torch.float64: (wp.float64, 8),
    torch.int32: (wp.int32, 4),
    torch.int64: (wp.int64, 8),
}
# Scratch by Warp's dtype: torch's dtype and how many of it
_SCRATCH = {wp.int32: (torch.int32, 1), wp.float64: (torch.float64, 1), wp.vec2d: (torch.float64, 2)}

_FAR = (1 << 31) - 1  # strides are 32 bits wide in the kernels

_stream = _compat.find("_C._cuda_getCurrentRawStream") or (lambda index: torch.cuda.current_stream(index).cuda_stream)


class Memory(NamedTuple):
    """What keeps the memory of `Rows`, and where it is."""

    tensor: Tensor | None
    device: Place


def _allocate(place: Place, shape: tuple[int, ...], dtype: Any) -> Rows:
    kind, scalars = _SCRATCH[dtype]
    tensor = torch.empty((*shape, scalars), dtype=kind, device=place.device.alias)
    size = scalars * kind.itemsize
    strides = (shape[1] * size, size) if len(shape) == 2 else (size,)
    return Rows(Memory(tensor, place), tensor.data_ptr(), dtype, shape, strides)


@functools.cache
def _warp_device(device: torch.device) -> Any:
    _building.initialise_quietly()
    try:
        return wp.device_from_torch(device)
    except IndexError:  # of the devices that Warp has found
        raise RuntimeError(
            f"segmentops: Warp finds no device for tensors on {device}. {NEEDS}. Until then, move the tensors "
            "to the CPU."
        ) from None


def place_of(device: torch.device) -> Place:
    """The device's current stream, with scratch from torch."""
    stream = _stream(device.index) if device.type == "cuda" else None
    return Place(_warp_device(device), stream, _allocate)


def _rows(tensor: Tensor, operand: Operand, matrices: bool, place: Place) -> Rows:
    if operand.dtype:
        return _positions(tensor, operand, place)
    if not matrices and tensor.dim() > 2:
        tensor = tensor.flatten(1)
    dtype, size = DTYPES[tensor.dtype]
    strides = tuple([stride * size for stride in tensor.stride()])
    if max(strides) > _FAR:
        return _rows(tensor.contiguous(), operand, matrices, place)
    shape = tuple(tensor.shape)
    if len(shape) == 1:
        shape, strides = (*shape, 1), (*strides, size)
    return Rows(Memory(tensor, place), tensor.data_ptr(), dtype, shape, strides)


def _positions(at: Tensor, operand: Operand, place: Place) -> Rows:
    """Positions as the kernels read and write them: one per segment, or one per column; of int64 the low halves."""
    if operand.trail:
        at = at.flatten(1) if at.dim() > 1 else at.unsqueeze(1)
    size = at.element_size()
    return Rows(Memory(at, place), at.data_ptr(), wp.int32, tuple(at.shape), tuple([size * s for s in at.stride()]))


def _index(idx: Tensor, place: Place) -> Rows:
    dtype, size = DTYPES[idx.dtype]
    return Rows(Memory(idx, place), idx.data_ptr(), dtype, (idx.shape[0],), (size * idx.stride(0),))


def _guard(device: torch.device) -> Any:
    """Makes `device` the current one, unless it is."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


@functools.cache
def kernel(name: str) -> Callable[..., Any]:
    """The function `(*operands, idx, m)` that runs operation `name` on tensors of one device, below autograd."""
    op = OPERATIONS[name]
    launches, matrices = LAUNCHES[name], op.matrices
    operands, results = op.operands, op.results
    # Which operand and dimension say what k and j are; without matrices, k is all of a trailing shape.
    extents = {letter: (i, d) for i, o in enumerate(operands) for d, letter in enumerate(o.trail, start=1)}
    trails = [[extents[letter] for letter in r.trail] for r in results]

    def run(*args: Any) -> Any:
        *tensors, idx, m = args
        _memory.check_operands(op, tensors, idx)
        like = tensors[0]
        with _guard(like.device):
            place = place_of(like.device)
            inputs = [_rows(t, o, matrices, place) for t, o in zip(tensors, operands, strict=True)]
            n = idx.shape[0]
            outs, written = [], []
            for result, trail in zip(results, trails, strict=True):
                shape = [n if result.lead == "n" else m]
                if matrices:
                    shape += [tensors[i].shape[d] for i, d in trail]
                elif trail:
                    shape += tensors[trail[0][0]].shape[1:]
                out = like.new_empty(shape, dtype=torch.int32 if result.dtype else dtype_of(result, like.dtype))
                outs.append(out)
                written.append(_rows(out, result, matrices, place))
            launches(_index(idx, place), m, *inputs, *written)
            outs = [o.long() if r.dtype else o for o, r in zip(outs, results, strict=True)]
        return tuple(outs) if len(outs) > 1 else outs[0]

    run.__name__ = run.__qualname__ = f"segmented_{name}"
    return run
