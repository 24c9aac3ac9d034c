# SPDX-License-Identifier: Apache-2.0
"""From a call to the kernel that runs it.

Two routes. A plain eager call, nothing active that wants to see it, goes straight to the engine,
through a lean autograd Function where a graph is needed. Everything else goes through one dispatcher
operation:

    public function
      plain tensors, nothing active    -> kernel, or Function(kernel)
      anything else                    -> torch.ops.segmentops.segmented_<name>
            Autograd                   -> forward mode | one functorch level | Function | below: _autograd
            FuncTorchBatched           -> the batch folded into elements and segments: _vmap
            CPU                        -> kernel, after a check of the shapes
            CUDA                       -> Warp's kernels, likewise: _cuda
            Meta, Fake                 -> empty results

A backward runs later, perhaps in another world (a batched gradient, a mode around `backward()`), so
every entry chooses its route again. All of it is built once for each line of the table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

from .. import _process
from ..ops import check as shapes
from ..ops.table import OPERATIONS, Operation
from . import _autograd, _compat, _fast, _vmap
from ._arguments import FLOATS, KEPT, dtype_of
from ._derivatives import ENTRIES, OPS, OperationRule
from ._kernels import KERNELS

NAMESPACE = "segmentops"

_library = _process.kept("library of operations", lambda: torch.library.Library(NAMESPACE, "DEF"))
_defined: dict[str, Any] = _process.kept("operations", dict)  # by name; by an earlier import of this module, too

APPLY: dict[str, Callable[..., Any]] = {}  # name -> the eager Function on the kernel


# ------------------------------------------------------------------------------------- the dispatcher


def _define(op: Operation) -> Any:
    tensors = ", ".join(f"Tensor {o.name}" for o in op.operands)
    results = ", ".join("Tensor" for _ in op.results)
    results = f"({results})" if len(op.results) > 1 else results
    _library.define(
        f"segmented_{op.name}({tensors}, Tensor idx, SymInt num_segments) -> {results}",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    return getattr(getattr(torch.ops, NAMESPACE), "segmented_" + op.name).default


def _check_shapes(op: Operation, args: tuple[Any, ...]) -> None:
    """Whoever calls the dispatcher's operation directly must not make a kernel read out of bounds."""
    *tensors, idx, m = args
    name = "segmented_" + op.name
    if idx.dim() != 1 or idx.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}: idx must be 1-D int32 or int64, got {idx.dtype} {tuple(idx.shape)}")
    if tensors[0].dtype not in KEPT:
        raise ValueError(f"{name}: {op.operands[0].name} must be {FLOATS}, got {tensors[0].dtype}")
    shapes.check_shapes(name, op, [o.name for o in op.operands], tensors, idx, m, _compat.differ)
    for operand, tensor in zip(op.operands, tensors, strict=True):
        dtype = dtype_of(operand, tensors[0].dtype)
        if tensor.dtype != dtype:
            raise ValueError(f"{name}: {operand.name} must be {dtype}, got {tensor.dtype}")


def _register_kernels(op: Operation) -> None:
    name = "segmented_" + op.name
    kernel = KERNELS[op.name]

    def cpu(*args: Any) -> Any:
        _check_shapes(op, args)
        return kernel(*args)

    def cuda(*args: Any) -> Any:
        from . import _cuda  # imports Warp, which takes longer than all of this package

        _check_shapes(op, args)
        return _cuda.kernel(op.name)(*args)

    def fake(*args: Any) -> Any:
        *tensors, idx, m = args
        _check_shapes(op, args)
        shapes = op.result_shapes([t.shape for t in tensors], idx.shape[0], m)
        like = tensors[0]
        outs = [
            like.new_empty(shape, dtype=dtype_of(r, like.dtype)) for r, shape in zip(op.results, shapes, strict=True)
        ]
        return tuple(outs) if len(outs) > 1 else outs[0]

    _library.impl(name, cpu, "CPU")
    _library.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


_new = [op for op in OPERATIONS.values() if op.name not in _defined]
_defined.update((op.name, _define(op)) for op in _new)
OPS.update(_defined)
for _op in OPERATIONS.values():
    _rule = OperationRule(_op)
    if _op in _new:
        _register_kernels(_op)
        _autograd.register(_library, _rule.name, OPS[_op.name], _rule)
        torch.library.register_vmap(f"{NAMESPACE}::{_rule.name}", _vmap.rule(_op, OPS[_op.name]), lib=_library)
    # What the fast route differentiates through: a Function on the kernel, or the composition.
    APPLY[_op.name] = (
        _autograd.make_function(
            _rule, Function, KERNELS[_op.name], faster=functools.partial(_fast.methods, _rule)
        )
        if _rule.has_backward
        else _rule.composed
    )
    ENTRIES[_op.name] = _fast.function(_op.name, APPLY[_op.name], OPS[_op.name], checks=False)
