# SPDX-License-Identifier: Apache-2.0
"""What follows from the table: the derivatives of every order, forward and reverse, as sums of primitives.

Fused operations (a backward that returns several gradients, a sum of two products) are programs over the primitives, so
their derivatives are derived, not written:

>>> PROGRAMS["mul_backward"].outputs
{'gx': (mul(g, s),), 'gs': (dot(g, x),)}
>>> transpose(PROGRAMS["mul"]).outputs == PROGRAMS["mul_backward"].outputs
True
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .table import OPERATIONS, PRIMITIVE, PRIMITIVES, PROGRAM, SELECTION


@dataclass(frozen=True)
class Term:
    """One primitive applied to named operands."""

    primitive: str
    operands: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Term:
        name, operands = re.fullmatch(r"(\w+)\((.*)\)", text.strip()).groups()  # type: ignore[union-attr]
        return cls(name, tuple(o.strip() for o in operands.split(",")))

    def __repr__(self) -> str:
        return f"{self.primitive}({', '.join(self.operands)})"


@dataclass(frozen=True)
class Program:
    """Results that are sums of terms over named inputs."""

    inputs: tuple[str, ...]
    outputs: dict[str, tuple[Term, ...]]


def differentiable(term: Term, position: int) -> bool:
    """Whether a term is linear in its operand at `position`; otherwise that is where elements are."""
    return not OPERATIONS[term.primitive].operands[position].by_product


def adjoint(term: Term, position: int, cotangent: str) -> Term:
    """The term that maps the cotangent of `term` to that of its operand at `position`."""
    names = [o.name for o in OPERATIONS[term.primitive].operands]
    template = Term.parse(OPERATIONS[term.primitive].adjoints[names[position]])
    named = dict(zip(names, term.operands, strict=True), g=cotangent)
    return Term(template.primitive, tuple(named[o] for o in template.operands))


def _cotangents(program: Program) -> list[str]:
    names = ["g"] if list(program.outputs) == ["out"] else ["g" + o for o in program.outputs]
    taken = set(program.inputs)
    while taken & set(names):
        names = ["g" + n for n in names]
    return names


def transpose(program: Program) -> Program:
    """The program of gradients: from one cotangent per output (and the inputs) to one per input."""
    cotangents = _cotangents(program)
    gradients: dict[str, list[Term]] = {name: [] for name in program.inputs}
    for cotangent, terms in zip(cotangents, program.outputs.values(), strict=True):
        for term in terms:
            for position, operand in enumerate(term.operands):
                if differentiable(term, position):
                    gradients[operand].append(adjoint(term, position, cotangent))
                else:
                    gradients.pop(operand, None)
    return Program(
        (*cotangents, *program.inputs), {"g" + name: tuple(terms) for name, terms in gradients.items()}
    )


def tangent(program: Program, output: str, moving: Sequence[str]) -> tuple[Term, ...]:
    """The terms of an output's tangent; `d<name>` is the tangent of an input in `moving`."""
    return tuple(
        Term(t.primitive, tuple("d" + o if p == position else o for p, o in enumerate(t.operands)))
        for t in program.outputs[output]
        for position, operand in enumerate(t.operands)
        if operand in moving and differentiable(t, position)
    )


def _programs() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for name in PRIMITIVES:
        inputs = tuple(o.name for o in OPERATIONS[name].operands)
        found[name] = Program(inputs, {"out": (Term(name, inputs),)})
        pair = OPERATIONS.get(name + "_add")
        if pair:
            inputs = tuple(o.name for o in pair.operands)
            half = len(inputs) // 2
            found[pair.name] = Program(inputs, {"out": (Term(name, inputs[:half]), Term(name, inputs[half:]))})
    for name in PRIMITIVES:
        if name + "_backward" in OPERATIONS:
            first = found[name + "_backward"] = transpose(found[name])
            found[name + "_double_backward"] = transpose(first)
    assert set(found) == {op.name for op in OPERATIONS.values() if op.kind in (PRIMITIVE, PROGRAM)}
    return found


PROGRAMS = _programs()


def backward_name(name: str) -> str | None:
    """The fused operation that returns all gradients of operation `name`, if there is one."""
    fused = name[: -len("_backward")] + "_double_backward" if name.endswith("_backward") else name + "_backward"
    return fused if fused in OPERATIONS else None


def has_backward(name: str) -> bool:
    """Whether an operation's gradients are operations again; otherwise its composition is differentiated."""
    if OPERATIONS[name].kind == SELECTION or backward_name(name) is not None:
        return True
    return name in PROGRAMS and "_double_backward" not in name


def calls(terms: Sequence[Term], present: Collection[str]) -> list[Term]:
    """The operations that compute a sum of terms: two terms at a time where that is one operation.

    Terms with an operand that is not `present` are left out.
    """
    left = [t for t in terms if all(o in present for o in t.operands)]
    found = []
    while left:
        term, *left = left
        pair = term.primitive + "_add"
        if left and left[0].primitive == term.primitive and pair in OPERATIONS:
            term = Term(pair, term.operands + left.pop(0).operands)
        found.append(term)
    return found


def evaluate(
    terms: Sequence[Term],
    values: Mapping[str, Any],
    apply: Callable[..., Any],
    add: Callable[[Any, Any], Any],
) -> Any:
    """Sum of the terms whose operands are all there (not None); `apply(name, *operands)` runs an operation.

    None if nothing is left to sum.
    """
    present = {name for name, value in values.items() if value is not None}
    parts = [apply(t.primitive, *(values[o] for o in t.operands)) for t in calls(terms, present)]
    return functools.reduce(add, parts) if parts else None
