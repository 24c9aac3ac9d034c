# SPDX-License-Identifier: Apache-2.0
"""The operations that JAX needs: those of the table, and tangents.

JAX differentiates forward and transposes what is linear. The tangent of an operation with one result is a sum of two
primitives at most, which is an operation of the table. The tangent of one with several results is an operation of
its own, so that its transpose sees all cotangents at once and can be one fused operation: that of `mul_backward` is
`mul_double_backward`. The same holds for the norms and their derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ops import calculus
from ..ops.calculus import PROGRAMS, Program, Term
from ..ops.table import OPERATIONS, Operand, Operation

NORMS = ("rms_norm", "max_norm")


@dataclass(frozen=True, eq=False)  # one object each: see `tangent`
class Tangent:
    """The tangent of an operation when some operands move, as a program over operands and tangents."""

    op: Operation
    program: Program
    results: tuple[int, ...]  # positions of the results that it is the tangent of; the others have none


@functools.cache
def tangent(of: Tangent | str, moving: tuple[str, ...]) -> Tangent:
    """The tangent of an operation of the table, or of a tangent."""
    op, program = (OPERATIONS[of], PROGRAMS[of]) if isinstance(of, str) else (of.op, of.program)
    taken = list(program.inputs)
    names = {}
    for name in moving:
        names[name] = _unused(name, taken)
        taken.append(names[name])
    # Names in the tables do not begin with a d and end with no prime, so d<name> is nobody else's.
    renamed = {"d" + name: new for name, new in names.items()}
    outputs = {
        o: tuple(Term(t.primitive, tuple(renamed.get(i, i) for i in t.operands)) for t in terms)
        for o in program.outputs
        if (terms := calculus.tangent(program, o, moving))
    }
    operands = (*op.operands, *(replace(_operand(op, name), name=new) for name, new in names.items()))
    results = tuple(i for i, o in enumerate(program.outputs) if o in outputs)
    made = Operation(op.name + "_tangent", operands, tuple(op.results[i] for i in results))
    return Tangent(made, Program(tuple(o.name for o in operands), outputs), results)


def _operand(op: Operation, name: str) -> Operand:
    return next(o for o in op.operands if o.name == name)


def _unused(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "'"
    return name


def linear_transpose(
    program: Program, wanted: Sequence[str], cotangents: dict[str, str]
) -> dict[str, tuple[Term, ...]]:
    """Terms of the cotangents of the inputs `wanted`, in which the program is linear.

    `cotangents` names those of the outputs that are not zero.
    """
    found: dict[str, tuple[Term, ...]] = {name: () for name in wanted}
    for output, cotangent in cotangents.items():
        for term in program.outputs[output]:
            for position, operand in enumerate(term.operands):
                if operand in found:
                    found[operand] += (calculus.adjoint(term, position, cotangent),)
    return found


def fused(terms: Sequence[tuple[Term, ...]]) -> tuple[str, tuple[str, ...]] | None:
    """The operation whose results are these sums, and the names of its operands; None if there is none."""
    for name, program in PROGRAMS.items():
        if len(program.outputs) == len(terms) > 1:
            bound: dict[str, str] = {}
            if all(_unify(p, t, bound) for p, t in zip(program.outputs.values(), terms, strict=True)):
                return name, tuple(bound[i] for i in program.inputs)
    return None


def _unify(pattern: tuple[Term, ...], terms: tuple[Term, ...], bound: dict[str, str]) -> bool:
    if [t.primitive for t in pattern] != [t.primitive for t in terms]:
        return False
    pairs = [(a, b) for p, t in zip(pattern, terms, strict=True) for a, b in zip(p.operands, t.operands, strict=True)]
    return all(bound.setdefault(a, b) == b for a, b in pairs)


# x', g': tangents. The by-product has none of its own: the derivatives of the norms account for it.
def norm_tangent(name: str) -> Operation:
    """out'[s] = <x', the gradient of out[s]>, the transpose of the norm's backward."""
    x, by_product = OPERATIONS[name].operands[0], OPERATIONS[name + "_backward"].operands[-1]
    return Operation(name + "_tangent", (replace(x, name="x'"), x, by_product), OPERATIONS[name].results[:1])


def norm_backward_tangent(name: str, moving: Sequence[str]) -> Operation:
    """The tangent of the norm's backward when g, x or both move."""
    op = OPERATIONS[name + "_backward"]
    return Operation(
        op.name + "_tangent", (*(replace(_operand(op, o), name=o + "'") for o in moving), *op.operands), op.results
    )
