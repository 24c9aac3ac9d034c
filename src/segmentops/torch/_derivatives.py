# SPDX-License-Identifier: Apache-2.0
"""The derivatives of the operations of the table, as `_autograd` takes them.

They are other operations: which ones is derived from the table, once for each operation and each set of inputs that
need a gradient, so that a gradient that is not needed is not computed and what only it would need is not kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ops import calculus, formulas
from ..ops.calculus import PROGRAMS
from ..ops.table import PRIMITIVES, SELECTION, Operation
from . import _arrays, _compose, _memory
from ._arguments import KEPT
from ._autograd import Needs

# Filled by `_routes`, by name of the operation; all are called as (*tensors, idx, m).
ENTRIES: dict[str, Callable[..., Any]] = {}  # for calls of the library: the route is chosen there, idx is valid
OPS: dict[str, Callable[..., Any]] = {}  # the dispatcher's operations


@dataclass(frozen=True)
class Step:
    """One operation of a backward, called with some of (*cotangents, *saved tensors)."""

    run: Callable[..., Any]
    arguments: tuple[int, ...]
    positions: tuple[int, ...]  # the operands whose gradients it returns; those for one operand are added up


class Plan:
    """How the backward of an operation computes the gradients that are needed, and what it keeps for that."""

    def __init__(self, op: Operation, needs: Needs) -> None:
        operands = [o.name for o in op.operands]
        count = len(operands)
        self.op = op
        self.wanted = [i for i in op.differentiable if needs[i]]
        self.fused = calculus.backward_name(op.name)  # one operation that returns all gradients
        by_products = [(count + 1 + i, r.name) for i, r in enumerate(op.results) if r.by_product]
        kept = [i for i, _ in by_products]
        self.cotangents: tuple[str, ...] = ("g",)
        self.program: calculus.Program | None = None
        if op.kind == SELECTION:  # linear in its operands once the by-product is known
            self.program = calculus.transpose(PROGRAMS["pick"])
        elif op.name not in PROGRAMS:  # the norms
            kept = [*range(count), *kept]
        else:
            self.program = calculus.transpose(PROGRAMS[op.name])
            self.cotangents = self.program.inputs[:-count]
            if len(self.wanted) < count:
                self.fused = None
            terms = [t for i in self.wanted for t in self.program.outputs["g" + operands[i]]]
            used = set(operands) if self.fused else {o for t in terms for o in t.operands}
            kept = [i for i, o in enumerate(operands) if o in used]
        self.saved = (*kept, count)  # positions in (*operands, idx, *results); idx comes last
        kept_names = dict(enumerate(operands)) | dict(by_products)
        self.names = (*self.cotangents, *(kept_names[i] for i in kept), "idx")
        # Where a gradient through the fused operation is asked for, but it has no backward, its parts have one.
        self.last = self.fused is not None and op.name in PROGRAMS and not calculus.has_backward(self.fused)
        self.nothing = [None] * (count + 1)
        self.complete = (True,) * len(self.cotangents)
        self._known: dict[Any, tuple[Step, ...]] = {}  # compiled autograd traces this: no functools.cache

    def steps(self, present: tuple[bool, ...], fused: bool) -> tuple[Step, ...]:
        """What to run, by which cotangents there are and whether the fused operation may be used."""
        key = present, fused
        if key not in self._known:
            self._known[key] = tuple(self._make_steps(present, fused))
        return self._known[key]

    def _make_steps(self, present: tuple[bool, ...], fused: bool) -> Iterator[Step]:
        if self.fused and fused and all(present):
            yield Step(ENTRIES[self.fused], tuple(range(len(self.names))), self.op.differentiable)
        elif self.program:
            missing = {n for n, p in zip(self.cotangents, present, strict=True) if not p}
            for i in self.wanted:
                terms = self.program.outputs["g" + self.op.operands[i].name]
                for term in calculus.calls(terms, set(self.names) - missing):
                    places = tuple(self.names.index(o) for o in (*term.operands, "idx"))
                    yield Step(ENTRIES[term.primitive], places, (i,))

    def gradients(self, cotangents: tuple[Any, ...], saved: tuple[Any, ...], rest: Any) -> Sequence[Any]:
        count = len(self.complete)
        values = cotangents[:count] + saved
        present = (
            self.complete
            if cotangents[0] is not None and count == 1
            else tuple([c is not None for c in cotangents[:count]])
        )
        differentiated = (
            self.last and torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in values)
        )
        found = self.nothing.copy()
        for step in self.steps(present, not differentiated):
            parts = step.run(*[values[k] for k in step.arguments], rest[0])
            if type(parts) is not tuple:
                (i,) = step.positions
                found[i] = parts if found[i] is None else found[i] + parts
            else:
                for i, part in zip(step.positions, parts, strict=True):
                    found[i] = part
        return found


class OperationRule:
    """The derivatives of one operation: see `_autograd.Rule`."""

    def __init__(self, op: Operation) -> None:
        self.op = op
        self.name = "segmented_" + op.name
        self.tensors = len(op.operands) + 1  # and idx
        self.differentiable = op.differentiable
        self.by_products = tuple(i for i, r in enumerate(op.results) if r.by_product)
        self.has_backward = calculus.has_backward(op.name)
        self._plans: dict[Needs, Plan] = {}

    def plan(self, needs: Needs) -> Plan:
        if needs not in self._plans:
            self._plans[needs] = Plan(self.op, needs)
        return self._plans[needs]

    def tangents(self, primals: Sequence[Any], moving: Sequence[Any], outs: Sequence[Any], rest: Any) -> Sequence:
        name = self.op.name
        *primals, idx = primals
        m = rest[0]
        if name in PROGRAMS:
            program = PROGRAMS[name]
            moves = {i: t for i, t in zip(program.inputs, moving, strict=False) if t is not None}
            values = dict(zip(program.inputs, primals, strict=True)) | {"d" + i: t for i, t in moves.items()}
            return [
                _sum(calculus.tangent(program, out, tuple(moves)), values, primals[0].dtype, idx, m)
                for out in program.outputs
            ]
        if self.op.kind == SELECTION:
            return [OPS["pick"](moving[0], outs[1], idx, m), None]
        if self.by_products:  # rms_norm, max_norm: a result depends on the elements of its own segment only
            # <x', gradient> rounded once, where the gradient is not 0 by definition: x' may be infinite elsewhere
            second = OPS[calculus.backward_name(calculus.backward_name(name))]  # type: ignore[arg-type, index]
            return [second(moving[0], torch.ones_like(outs[0]), primals[0], outs[1], idx, m)[0], None]
        # the derivative of a norm is linear in g, and its own derivative with respect to x is symmetric
        derivative = OPS[calculus.backward_name(name)]  # type: ignore[index]
        dg, dx = moving[:2]
        dtype = primals[0].dtype
        if dg is not None and dx is not None:
            dg, dx, *primals = [_wide(t) for t in (dg, dx, *primals)]
        parts = [OPS[name](dg, *primals[1:], idx, m)] if dg is not None else []
        parts += [derivative(dx, *primals, idx, m)[1]] if dx is not None else []
        return [sum(parts[1:], parts[0]).to(dtype)]

    def composed(self, *args: Any) -> Any:
        *tensors, idx, m = args
        _memory.check_real(self.op, tensors, idx)
        # Through the entries, an operation that has a backward would come back here.
        primitives = _compose.ATEN if self.has_backward else namespace()
        return _compose.composed(self.op.name, primitives, tuple(tensors), idx, m)


def _wide(tensor: Tensor) -> Tensor:
    """Half precision as float32, the dtype of its by-products: a sum of several operations is rounded once."""
    return tensor.to(KEPT.get(tensor.dtype, tensor.dtype))


def _sum(terms: Sequence[calculus.Term], values: dict[str, Tensor], dtype: torch.dtype, idx: Tensor, m: Any) -> Any:
    """The sum of terms over the dispatcher's operations; None if there is none."""
    if len(calculus.calls(terms, values)) > 1:
        values = {name: _wide(t) for name, t in values.items()}
    found = calculus.evaluate(terms, values, _apply(OPS, idx, m), torch.add)
    return None if found is None else found.to(dtype)


def _apply(table: dict[str, Callable[..., Any]], idx: Tensor, m: Any) -> Callable[..., Any]:
    return lambda primitive, *tensors: table[primitive](*tensors, idx, m)


@functools.cache
def namespace() -> formulas.Primitives:
    """The primitives through the entries, for compositions that can be differentiated again."""
    return formulas.Primitives(_arrays, {name: ENTRIES[name] for name in PRIMITIVES})
