# SPDX-License-Identifier: Apache-2.0
"""The fast route: a whole call on plain eager CPU tensors is one native built-in, `plain_call.h`.

Here is what it knows: objects of torch, by address, and each operation's line of the table. Whatever does not
fit its questions goes the general route.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import native
from ..native._builtin import AVAILABLE, bound
from ..native._engine import require_layout
from ..ops.abi import after_results
from ..ops.table import OPERATIONS, Operand
from . import _compat, _index, _source

_DATA = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ARRAYS = 8
_KINDS = {None: 0, "i64": ord("l"), "i32": ord("i"), "f64": ord("d")}

# The fields of `World`: objects, names of attributes, and numbers.
_OBJECTS: dict[str, Any] = {
    "tensor": Tensor,
    "parameter": Parameter,
    "integer": int,
    **dict.fromkeys(("exchange", "storage_size", "storage_of", "implementation")),
    **{f"dtypes{i}": dtype for i, dtype in enumerate((*_DATA, torch.int64, torch.int32))},
    **{
        name: name
        for name in (
            *("data_ptr", "is_cpu", "is_neg", "dtype", "shape", "is_contiguous", "contiguous", "requires_grad"),
            *("new_empty", "_version", "needs_input_grad", "saved_tensors", "to_save", "rest"),
            *("untyped_storage", "nbytes", "storage_offset", "stride"),
        )
    },
    "dtype_only": ("dtype",),
    "dispatch_modes": _compat.dispatch_modes,
    "functorch_active": _compat.functorch_active,
    "tracing": _compat.tracing,
    "profiling": _compat.profiling,  # a profiler shows the dispatcher's operations by name
    "count_function_modes": _compat.count_function_modes,
    "function_modes": _compat.function_modes,
    "forward_ad": _compat.forward_ad,
    "current_level": "_current_level",
    "grad_enabled": torch.is_grad_enabled,
    "threads": native.threads,
    "verdicts": _index.verdicts,
}


class _World(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in (*_OBJECTS, "setting")] + [
        ("look_size", ctypes.c_int64),
        ("pays_from", ctypes.c_int64),
    ]


class _Array(ctypes.Structure):
    _fields_ = [("lead", ctypes.c_int64), ("trail", ctypes.c_int64 * 2), ("kind", ctypes.c_int64)]

    @classmethod
    def of(cls, array: Operand | None) -> _Array:
        if array is None:
            return cls(kind=-1)
        kind = 1 if array.by_product and not array.dtype else _KINDS[array.dtype]
        trail = [ord(letter) for letter in array.trail]
        return cls(ord(array.lead), (ctypes.c_int64 * 2)(*trail), kind)


class _Operation(ctypes.Structure):
    _fields_ = [
        ("world", ctypes.POINTER(_World)),
        *[(name, ctypes.c_int64) for name in ("operands", "results", "outputs", "matrices")],
        ("differentiable", ctypes.c_int64),
        ("in", _Array * _ARRAYS),
        ("out", _Array * _ARRAYS),
        ("function", ctypes.c_void_p * len(_DATA)),
        ("refuse", ctypes.py_object),
    ]


class _Route(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.POINTER(_Operation)),
        ("asks", ctypes.c_int64),
        ("checks", ctypes.c_int64),
        ("general", ctypes.py_object),
        ("apply", ctypes.py_object),
    ]


class _Plan(ctypes.Structure):
    _fields_ = [
        ("saved", ctypes.c_int64),
        ("save", ctypes.c_int64 * (2 * _ARRAYS)),
        ("run", ctypes.py_object),
        ("arguments", ctypes.c_int64),
        ("argument", ctypes.c_int64 * (2 * _ARRAYS)),
        ("gradients", ctypes.c_int64),
        ("gradient", ctypes.c_int64 * _ARRAYS),
        ("last", ctypes.c_int64),
    ]


class _Function(ctypes.Structure):
    _fields_ = [
        ("kernel", _Route),
        *[(name, ctypes.py_object) for name in ("learn", "forward", "backward")],
        ("plans", ctypes.c_void_p * (1 << _ARRAYS)),
    ]


@functools.cache
def _world() -> _World:
    setting = ctypes.addressof(_index.Setting.native)
    world = _World(*map(id, _OBJECTS.values()), setting, _index.LOOK, native.PAYS_FROM)
    world.exchange = _exchange()
    world.storage_size, world.storage_of, world.implementation = _compat.storage_functions() or (None, None, None)
    return world


def _exchange() -> int | None:
    """Address of the function that fills a DLTensor with what a tensor is, from DLPack's table of them."""
    capsule = _compat.find("Tensor.__dlpack_c_exchange_api__")
    if capsule is None:
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = get(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(at).value != 1:  # major version
        return None
    return ctypes.c_void_p.from_address(at + 8 * 5).value  # after the version, an older table and three functions


@functools.cache
def _operation(name: str) -> _Operation:
    op = OPERATIONS[name]
    outputs = (*op.results, *after_results(name))

    def refuse(idx: Tensor, m: int) -> None:
        raise ValueError(_index.explain(f"segmented_{name}", idx, m))

    return _Operation(
        ctypes.pointer(_world()),
        *(len(op.operands), len(op.results), len(outputs), op.matrices),
        sum(1 << i for i in op.differentiable),
        (_Array * _ARRAYS)(*map(_Array.of, op.operands)),
        (_Array * _ARRAYS)(*map(_Array.of, outputs)),
        refuse=refuse,
    )


def unless_it_fails(find: Callable[[], Any], instead: Callable[[], Any]) -> Any:
    """What `find` gets from the engine; where that cannot be built, what stands in for it, and a warning."""
    try:
        return find()
    except native.NativeBuildError as error:
        from . import _substitute  # imports Warp

        _substitute.warn(str(error))
        return instead()


def know(name: str, dtype: torch.dtype, address: int) -> None:
    """From now on the fast route takes operation `name` on data of `dtype`: the engine's function is there."""
    _operation(name).function[_DATA.index(dtype)] = address


def kernel(name: str, general: Callable[..., Any]) -> Callable[..., Any]:
    """An operation below autograd, `(*operands, idx, m, mode=0)`; `general` does the same until `know` was called."""
    return _later("plain", _arguments(name) + ", mode=0", _route(name, general=general), general)


def function(name: str, apply: Callable[..., Any], general: Callable[..., Any], checks: bool) -> Callable[..., Any]:
    """An operation `(*operands, idx, m)`; `apply` differentiates it, `general` takes what is not plain.

    With `checks`, for users: arguments may be anything, and `general` raises the errors.
    """
    return _later("plain", _arguments(name), _route(name, True, checks, general, apply), general)


def methods(rule: Any, forward: Callable[..., Any], backward: Callable[..., Any]) -> tuple[Any, Any]:
    """Forward and backward of the autograd Function of an operation, natively; in Python where that is not possible."""
    name = rule.op.name
    if len(rule.op.results) > 1:
        return forward, backward
    native_function = _Function(_route(name, general=forward), None, forward, backward)

    def learn(needs: tuple[bool, ...]) -> None:
        plan = rule.plan(needs[: rule.tensors])
        steps = plan.steps(plan.complete, True)
        found = _Plan(len(plan.saved), _numbers(plan.saved), last=plan.last)
        if len(steps) == 1:
            (step,) = steps
            found.run = step.run
            found.arguments, found.argument = len(step.arguments), _numbers(step.arguments)
            found.gradients, found.gradient = len(step.positions), (ctypes.c_int64 * _ARRAYS)(*step.positions)
        plans.append(found)
        mask = sum(1 << i for i in range(rule.tensors - 1) if needs[i])
        native_function.plans[mask] = ctypes.addressof(found)

    plans: list[_Plan] = []
    native_function.learn = learn
    return (
        _later("function_forward", "*args", native_function, forward),
        _later("function_backward", "*args", native_function, backward),
    )


def _arguments(name: str) -> str:
    return ", ".join([*(o.name for o in OPERATIONS[name].operands), "idx", "m"])


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * (2 * _ARRAYS))(*values)


def _route(name: str, *args: Any, **fields: Any) -> _Route:
    return _Route(ctypes.pointer(_operation(name)), *args, **fields)


@functools.cache
def _fits() -> bool:
    """Whether the structures here are those of `plain_call.h`; if they are not, calls go through Python."""
    try:
        address = native.load().address("plain_layout")
        require_layout(address, _World, _Array, _Operation, _Route, _Plan, _Function)
    except native.NativeBuildError as error:
        warnings.warn(f"segmentops.torch makes its calls in Python, which is slower: {error}", stacklevel=2)
        return False
    return True


def _later(native_name: str, arguments: str, target: ctypes.Structure, general: Callable[..., Any]) -> Any:
    """A function that becomes the built-in `native_name` on `target` at its first call, which compiles it."""

    def find() -> Any:
        address = native.load().address(native_name)
        return bound(native_name, address, target) if _fits() else general

    def first(*args: Any) -> Any:
        names["_fast"] = unless_it_fails(find, lambda: general) if AVAILABLE else general
        return names["_fast"](*args)

    # Python, since Dynamo follows nothing else; written out, so that arguments are not packed and unpacked.
    names = {"_fast": first, "_general": general, "_dynamo": _compat.is_dynamo_compiling}
    call = arguments.replace("=0", "")
    source = f"def call({arguments}):\n    return _general({call}) if _dynamo() else _fast({call})\n"
    return _source.define(f"{native_name}({arguments})", source, names)
