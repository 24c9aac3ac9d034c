"""From a call to the kernel that runs it.

Two routes. A plain eager call, nothing active that wants to see it, goes straight to the engine,
through a lean autograd Function where a graph is needed. Everything else goes through one dispatcher
operation:

    public function
      plain tensors, nothing active    -> kernel, or Function(kernel)
      anything else                    -> torch.ops.nvalchemiops.segmented_<name>
            Autograd                   -> forward mode | one functorch level | Function | below: _autograd
            FuncTorchBatched           -> the batch folded into elements and segments: _vmap
            CPU                        -> kernel, after a check of the shapes
            Meta, Fake                 -> empty results

A backward runs later, perhaps in another world (a batched gradient, a mode around `backward()`), so
every entry chooses its route again. All of it is built once for each line of `algebra.SHAPES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter

from .. import algebra
from ..algebra import OPERATIONS, PROGRAMS, Operation
from . import _autograd, _compat, _compose, _vmap
from ._autograd import Needs
from ._compat import forward_ad
from ._kernels import KERNELS

NAMESPACE = "nvalchemiops"
PLAIN = frozenset((Tensor, Parameter))

_library = torch.library.Library(NAMESPACE, "DEF")

OPS: dict[str, Any] = {}  # name -> the dispatcher's operation
ENTRIES: dict[str, Callable[..., Any]] = {}  # name -> (*tensors, idx, m): the route is chosen there; idx is valid
APPLY: dict[str, Callable[..., Any]] = {}  # name -> the eager Function on the kernel


# ------------------------------------------------------------------------------------ derivatives


@dataclass(frozen=True)
class Plan:
    """How the backward of an operation computes the gradients that are needed, and what it keeps for that."""

    saved: tuple[int, ...]  # positions in (*operands, idx, *results); idx comes last
    fused: str | None  # one operation that returns all of them
    inputs: tuple[str, ...]  # names of the cotangents and operands, in the order of `fused`
    terms: tuple[tuple[int, tuple[algebra.Term, ...]], ...]  # otherwise: position of the operand, its gradient


@functools.cache
def _plan(name: str, needs: tuple[bool, ...]) -> Plan:
    op = OPERATIONS[name]
    operands = [o.name for o in op.operands]
    count = len(operands)
    fused = algebra.backward_name(name)
    if fused and name not in PROGRAMS:
        kept = [count + 1 + i for i, r in enumerate(op.results) if r.by_product]
        return Plan((*range(count), *kept, count), fused, (), ())
    wanted = [i for i in range(count) if needs[i]]
    gradients = algebra.transpose(PROGRAMS[name])
    terms = tuple((i, gradients.outputs["g" + operands[i]]) for i in wanted)
    if len(wanted) < count:
        fused = None
    used = operands if fused else {o for _, sums in terms for t in sums for o in t.operands}
    return Plan((*(i for i, o in enumerate(operands) if o in used), count), fused, gradients.inputs, terms)


class OperationRule:
    """The derivatives of one line of `algebra.SHAPES`: see `_autograd.Rule`."""

    def __init__(self, op: Operation) -> None:
        self.op = op
        self.name = "segmented_" + op.name
        self.tensors = len(op.operands) + 1  # and idx
        self.differentiable = op.differentiable
        self.by_products = tuple(i for i, r in enumerate(op.results) if r.by_product)
        self.has_backward = algebra.has_backward(op.name)

    def saved(self, needs: Needs) -> Sequence[int]:
        return _plan(self.op.name, needs[:-1]).saved

    def gradients(self, needs: Needs, cotangents: Sequence[Any], saved: Sequence[Any], rest: Any) -> Sequence:
        *kept, idx = saved
        m = rest[0]
        plan = _plan(self.op.name, needs[:-1])
        cotangents = cotangents[: len(self.op.results) - len(self.by_products)]
        found: list[Any] = [None] * self.tensors
        complete = all(c is not None for c in cotangents)
        if self.op.name not in PROGRAMS:
            if complete:
                parts = _autograd.as_tuple(ENTRIES[plan.fused](*cotangents, *kept, idx, m))  # type: ignore[index]
                for position, part in zip(self.differentiable, parts, strict=True):
                    found[position] = part
            return found
        if plan.fused and complete:
            last = not algebra.has_backward(plan.fused)  # its derivative would be that of a composition
            if not (last and torch.is_grad_enabled() and any(t.requires_grad for t in (*cotangents, *kept))):
                return [*ENTRIES[plan.fused](*cotangents, *kept, idx, m), None]
        values: dict[str, Any] = dict(zip(plan.inputs, cotangents, strict=False))
        operands = plan.inputs[len(cotangents) :]
        values.update((operands[i], tensor) for i, tensor in zip(plan.saved, kept, strict=False))
        for position, terms in plan.terms:
            found[position] = algebra.evaluate(terms, values, _apply(ENTRIES, idx, m), torch.add)
        return found

    def tangents(self, primals: Sequence[Any], moving: Sequence[Any], outs: Sequence[Any], rest: Any) -> Sequence:
        name = self.op.name
        *primals, idx = primals
        m = rest[0]
        if name in PROGRAMS:
            program = PROGRAMS[name]
            moves = {i: t for i, t in zip(program.inputs, moving, strict=False) if t is not None}
            values = dict(zip(program.inputs, primals, strict=True)) | {"d" + i: t for i, t in moves.items()}
            return [
                algebra.evaluate(algebra.tangent(program, out, tuple(moves)), values, _apply(OPS, idx, m), torch.add)
                for out in program.outputs
            ]
        derivative = OPS[algebra.backward_name(name)]  # type: ignore[index]
        if self.by_products:  # rms_norm, max_norm: a result depends on the elements of its own segment only
            gradient = derivative(torch.ones_like(outs[0]), primals[0], outs[1], idx, m)
            return [OPS["dot"](moving[0], gradient, idx, m), None]
        # the derivative of a norm is linear in g, and its own derivative with respect to x is symmetric
        dg, dx = moving[:2]
        parts = [OPS[name](dg, *primals[1:], idx, m)] if dg is not None else []
        parts += [derivative(dx, *primals, idx, m)[1]] if dx is not None else []
        return [sum(parts[1:], parts[0])]

    def composed(self, *args: Any) -> Any:
        *tensors, idx, m = args
        return _compose.composed(self.op.name, _OPS_NAMESPACE, tuple(tensors), idx, m)


def _apply(table: dict[str, Callable[..., Any]], idx: Tensor, m: Any) -> Callable[..., Any]:
    return lambda primitive, *tensors: table[primitive](*tensors, idx, m)


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
    if tensors[0].dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name}: {op.operands[0].name} must be float32 or float64, got {tensors[0].dtype}")
    dims = op.dims([t.shape for t in tensors])
    lead = {"n": idx.shape[0], "m": m}
    for operand, tensor in zip(op.operands, tensors, strict=True):
        shape = (lead[operand.lead], *(d for t in operand.trail for d in dims[t]))
        if tensor.dim() != len(shape) or any(a != b for a, b in zip(tensor.shape, shape, strict=True)):
            raise ValueError(f"{name}: {operand.name} must have shape {shape}, got {tuple(tensor.shape)}")
        dtype = torch.int64 if operand.dtype else tensors[0].dtype
        if tensor.dtype != dtype:
            raise ValueError(f"{name}: {operand.name} must be {dtype}, got {tensor.dtype}")


def _register_kernels(op: Operation) -> None:
    name = "segmented_" + op.name
    kernel = KERNELS[op.name]

    def cpu(*args: Any) -> Any:
        _check_shapes(op, args)
        return kernel(*args)

    def cuda(*args: Any) -> Any:
        raise NotImplementedError(f"{name}: CUDA tensors are not supported yet; call .cpu() first")

    def fake(*args: Any) -> Any:
        *tensors, idx, m = args
        _check_shapes(op, args)
        shapes = op.result_shapes([t.shape for t in tensors], idx.shape[0], m)
        like = next(t for t, o in zip(tensors, op.operands, strict=True) if not o.dtype)
        outs = [
            like.new_empty(shape, dtype=torch.int64 if r.dtype else like.dtype)
            for r, shape in zip(op.results, shapes, strict=True)
        ]
        return tuple(outs) if len(outs) > 1 else outs[0]

    _library.impl(name, cpu, "CPU")
    _library.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


# ------------------------------------------------------------------------------------ the fast route


def quiet() -> bool:
    """Nothing is active that wants to see the operation. (Not to be asked under Dynamo.)"""
    return not (
        _compat.dispatch_modes()
        or _compat.functorch_active()
        or forward_ad._current_level >= 0
        or _compat.tracing() is not None
        or _compat.count_function_modes()
        and _compat.function_modes()
    )


def has_data(tensors: tuple[Tensor, ...]) -> bool:
    """Plain CPU memory behind every tensor.

    No pointer (RuntimeError): a dead functorch wrapper, legacy vmap, sparse. 0: a zero tensor, meta.
    is_neg: a pending negation (`z.conj().imag`).
    """
    try:
        return all((t.data_ptr() or not t.numel()) and t.is_cpu and not t.is_neg() for t in tensors)
    except RuntimeError:
        return False


def _make_entry(op: Operation, rule: OperationRule) -> Callable[..., Any]:
    target, kernel = OPS[op.name], KERNELS[op.name]
    count = rule.tensors
    differentiable = rule.differentiable
    differentiate = APPLY.get(op.name, rule.composed)
    is_dynamo_compiling, is_grad_enabled = _compat.is_dynamo_compiling, torch.is_grad_enabled

    def entry(*args: Any) -> Any:
        if is_dynamo_compiling():
            return target(*args)
        tensors = args[:count]
        for t in tensors:
            if type(t) not in PLAIN:
                return target(*args)
        if not (quiet() and has_data(tensors)):
            return target(*args)
        if is_grad_enabled():
            for i in differentiable:
                if args[i].requires_grad:
                    return differentiate(*args)
        return kernel(*args)

    return entry


for _op in OPERATIONS.values():
    OPS[_op.name] = _define(_op)
for _op in OPERATIONS.values():
    _rule = OperationRule(_op)
    _register_kernels(_op)
    _autograd.register(_library, _rule.name, OPS[_op.name], _rule)
    torch.library.register_vmap(f"{NAMESPACE}::{_rule.name}", _vmap.rule(_op, OPS[_op.name]), lib=_library)
    if _rule.has_backward:
        APPLY[_op.name] = _autograd.make_function(_rule, Function, KERNELS[_op.name])
    ENTRIES[_op.name] = _make_entry(_op, _rule)

_OPS_NAMESPACE = _compose.Namespace({name: ENTRIES[name] for name in algebra.ADJOINTS})
