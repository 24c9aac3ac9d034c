# SPDX-License-Identifier: Apache-2.0
"""The algebra of segment operations, free of any framework.

Two tables say everything. `ADJOINTS` lists the multilinear primitives: they are closed under
transposition, so every derivative of every order, forward or reverse, is a sum of the same
primitives. `SHAPES` lists what each operation takes and returns; outputs, fake tensors, batching
rules and schemas follow from it. The bindings hold no derivative of their own.

Fused operations (a backward that returns several gradients, a sum of two products) are programs
over the primitives, so their derivatives are derived, not written:

>>> PROGRAMS["mul_backward"].outputs
{'gx': (mul(g, s),), 'gs': (dot(g, x),)}
>>> transpose(PROGRAMS["mul"]).outputs == PROGRAMS["mul_backward"].outputs
True

rms_norm and max_norm are not linear. Their first and second derivatives are operations of
`SHAPES`; beyond, the formulas at the end of this file are differentiated by the framework.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


# The primitives, s = idx[i], and per operand the adjoint for the cotangent g of the result.
#
#   sum(x)[s] = sum of x[i]                  broadcast(y)[i] = y[s]
#   mean(x)[s] = sum(x)[s] / count[s]        spread(y)[i] = y[s] / count[s]
#   dot(x, y)[s] = sum of <x[i], y[i]>       mul(x, s)[i] = x[i] s[s]
#   matvec(v, a)[i] = a[s]^T v[i]            matvec_t(w, a)[i] = a[s] w[i]
#   outer(v, w)[s] = sum of v[i] w[i]^T
ADJOINTS: dict[str, dict[str, str]] = {
    "sum": {"x": "broadcast(g)"},
    "broadcast": {"y": "sum(g)"},
    "mean": {"x": "spread(g)"},
    "spread": {"y": "mean(g)"},
    "dot": {"x": "mul(y, g)", "y": "mul(x, g)"},
    "mul": {"x": "mul(g, s)", "s": "dot(g, x)"},
    "matvec": {"v": "matvec_t(g, a)", "a": "outer(v, g)"},
    "matvec_t": {"w": "matvec(g, a)", "a": "outer(g, w)"},
    "outer": {"v": "matvec_t(w, g)", "w": "matvec(v, g)"},
}

# Operands and results: a leading n is one row an element, a leading m one a segment. In the
# operations that know no j, k stands for any trailing shape. A star marks a by-product: not
# differentiable, kept for the backward, not in half precision. `i64` are positions of elements, -1 where there is none.
SHAPES = """
sum                       x[n,k]                                    -> out[m,k]
mean                      x[n,k]                                    -> out[m,k]
broadcast                 y[m,k]                                    -> out[n,k]
spread                    y[m,k]                                    -> out[n,k]
dot                       x[n,k] y[n,k]                             -> out[m]
mul                       x[n,k] s[m]                               -> out[n,k]
matvec                    v[n,k] a[m,k,j]                           -> out[n,j]
matvec_t                  w[n,j] a[m,k,j]                           -> out[n,k]
outer                     v[n,k] w[n,j]                             -> out[m,k,j]
dot_add                   x[n,k] y[n,k] u[n,k] w[n,k]               -> out[m]
mul_add                   x[n,k] s[m] y[n,k] t[m]                   -> out[n,k]
matvec_add                v[n,k] a[m,k,j] w[n,k] b[m,k,j]           -> out[n,j]
mul_backward              g[n,k] x[n,k] s[m]                        -> gx[n,k] gs[m]
dot_backward              g[m] x[n,k] y[n,k]                        -> gx[n,k] gy[n,k]
matvec_backward           g[n,j] v[n,k] a[m,k,j]                    -> gv[n,k] ga[m,k,j]
mul_double_backward       ggx[n,k] ggs[m] g[n,k] x[n,k] s[m]        -> gg[n,k] gx[n,k] gs[m]
dot_double_backward       ggx[n,k] ggy[n,k] g[m] x[n,k] y[n,k]      -> gg[m] gx[n,k] gy[n,k]
matvec_double_backward    ggv[n,k] gga[m,k,j] g[n,j] v[n,k] a[m,k,j] -> gg[n,j] gv[n,k] ga[m,k,j]
rms_norm                  x[n,k]                                    -> out[m] *inv[m]
rms_norm_backward         g[m] x[n,k] *inv[m]                       -> gx[n,k]
rms_norm_double_backward  v[n,k] g[m] x[n,k] *inv[m]                -> gg[m] gx[n,k]
max_norm                  x[n,k]                                    -> out[m] *at[m]:i64
max_norm_backward         g[m] x[n,k] *at[m]:i64                    -> gx[n,k]
max_norm_double_backward  v[n,k] g[m] x[n,k] *at[m]:i64             -> gg[m] gx[n,k]
"""

# What maps each column of a trailing shape by itself: a batch can become one more column.
COLUMNWISE = frozenset({"sum", "mean", "broadcast", "spread"})


@dataclass(frozen=True)
class Operand:
    """One array of an operation: its leading dimension ("n" or "m") and its trailing ones."""

    name: str
    lead: str
    trail: tuple[str, ...]
    dtype: str | None = None
    by_product: bool = False

    @classmethod
    def parse(cls, text: str) -> Operand:
        star, name, dims, dtype = re.fullmatch(r"(\*?)(\w+)\[([\w,]+)\](?::(\w+))?", text).groups()  # type: ignore[union-attr]
        lead, *trail = dims.split(",")
        return cls(name, lead, tuple(trail), dtype, bool(star))


@dataclass(frozen=True)
class Operation:
    """A line of `SHAPES`."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]

    @property
    def matrices(self) -> bool:
        """Whether k and j are single dimensions; otherwise k is any trailing shape."""
        return any("j" in o.trail for o in self.operands)

    @property
    def differentiable(self) -> tuple[int, ...]:
        """Positions of the operands that have a gradient."""
        return tuple(i for i, o in enumerate(self.operands) if not o.by_product)

    @property
    def columnwise(self) -> bool:
        return self.name in COLUMNWISE

    def dims(self, shapes: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """What k and j stand for, from the operands' shapes."""
        found: dict[str, Sequence[Any]] = {}
        for operand, shape in zip(self.operands, shapes, strict=True):
            if not self.matrices and operand.trail:
                found.setdefault("k", tuple(shape[1:]))
            elif self.matrices:
                for k, letter in enumerate(operand.trail):
                    found.setdefault(letter, (shape[1 + k],))
        return found

    def result_shapes(self, shapes: Sequence[Sequence[Any]], n: Any, m: Any) -> list[tuple[Any, ...]]:
        """Shapes of the results, from the operands' shapes and the numbers of elements and segments."""
        dims = self.dims(shapes)
        lead = {"n": n, "m": m}
        return [(lead[r.lead], *(d for t in r.trail for d in dims[t])) for r in self.results]


def _parse_shapes(text: str) -> dict[str, Operation]:
    table = {}
    for line in text.strip().splitlines():
        left, right = line.split("->")
        name, *operands = left.split()
        table[name] = Operation(
            name, tuple(map(Operand.parse, operands)), tuple(map(Operand.parse, right.split()))
        )
    return table


OPERATIONS = _parse_shapes(SHAPES)


@dataclass(frozen=True)
class Program:
    """Results that are sums of terms over named inputs."""

    inputs: tuple[str, ...]
    outputs: dict[str, tuple[Term, ...]]


def adjoint(term: Term, position: int, cotangent: str) -> Term:
    """The term that maps the cotangent of `term` to that of its operand at `position`."""
    names = [o.name for o in OPERATIONS[term.primitive].operands]
    template = Term.parse(ADJOINTS[term.primitive][names[position]])
    named = dict(zip(names, term.operands, strict=True), g=cotangent)
    return Term(template.primitive, tuple(named[o] for o in template.operands))


def _cotangents(program: Program) -> list[str]:
    names = ["g"] if list(program.outputs) == ["out"] else ["g" + o for o in program.outputs]
    taken = set(program.inputs)
    while taken & set(names):
        names = ["g" + n for n in names]
    return names


def transpose(program: Program) -> Program:
    """The program of gradients: from a cotangent an output (and the inputs) to one an input."""
    cotangents = _cotangents(program)
    gradients: dict[str, list[Term]] = {name: [] for name in program.inputs}
    for cotangent, terms in zip(cotangents, program.outputs.values(), strict=True):
        for term in terms:
            for position, operand in enumerate(term.operands):
                gradients[operand].append(adjoint(term, position, cotangent))
    return Program(
        (*cotangents, *program.inputs), {"g" + name: tuple(terms) for name, terms in gradients.items()}
    )


def tangent(program: Program, output: str, moving: Sequence[str]) -> tuple[Term, ...]:
    """The terms of an output's tangent; `d<name>` is the tangent of an input in `moving`."""
    return tuple(
        Term(t.primitive, tuple("d" + o if p == position else o for p, o in enumerate(t.operands)))
        for t in program.outputs[output]
        for position, operand in enumerate(t.operands)
        if operand in moving
    )


def _programs() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for name in ADJOINTS:
        inputs = tuple(o.name for o in OPERATIONS[name].operands)
        found[name] = Program(inputs, {"out": (Term(name, inputs),)})
        pair = OPERATIONS.get(name + "_add")
        if pair:
            inputs = tuple(o.name for o in pair.operands)
            half = len(inputs) // 2
            found[pair.name] = Program(inputs, {"out": (Term(name, inputs[:half]), Term(name, inputs[half:]))})
    for name in ("mul", "dot", "matvec"):
        first = found[name + "_backward"] = transpose(found[name])
        found[name + "_double_backward"] = transpose(first)
    return found


PROGRAMS = _programs()


def backward_name(name: str) -> str | None:
    """The fused operation that returns all gradients of operation `name`, if there is one."""
    fused = name[: -len("_backward")] + "_double_backward" if name.endswith("_backward") else name + "_backward"
    return fused if fused in OPERATIONS else None


def has_backward(name: str) -> bool:
    """Whether an operation's gradients are operations again; otherwise its composition is differentiated."""
    return backward_name(name) is not None or name in PROGRAMS and "_double_backward" not in name


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


# The norms, over a namespace P with the primitives, where, sqrt, ones_like, count(idx, m) (floating, one a segment) and
# power_of_two(a), a constant near a. They can be differentiated any number of times: at an empty or an all-zero segment
# each division and square root sees a 1, so that every derivative there is 0, never NaN. Beyond first order data are
# scaled by a power of two, which rounds nothing: neither squares nor inverse powers leave the range of their type.
# A derivative takes what the forward kept as a constant, to scale or to pick by; what depends on x is computed again.


def _inverse(P: Any, x: Any, one: Any) -> Any:
    nonzero = x != 0  # a NaN stays a NaN
    return P.where(nonzero, one / P.where(nonzero, x, one), P.zeros_like(x))


def _safe_sqrt(P: Any, x: Any) -> Any:
    nonzero = x != 0
    return P.where(nonzero, P.sqrt(P.where(nonzero, x, P.ones_like(x))), P.zeros_like(x))


def rms_norm(P: Any, x: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    """out and inv = 1 / (out count)."""
    square = P.dot(x, x, idx, m)
    count = P.maximum(P.count(idx, m, square), P.ones_like(square))
    out = _safe_sqrt(P, square / count)
    return out, _inverse(P, out * count, P.ones_like(out))


def rms_norm_backward(P: Any, g: Any, x: Any, inv: Any, idx: Any, m: Any) -> Any:
    y = P.mul(x, P.power_of_two(inv), idx, m)
    return P.mul(y, g * rms_norm(P, y, idx, m)[1], idx, m)


def rms_norm_tangent(P: Any, v: Any, x: Any, inv: Any, idx: Any, m: Any) -> Any:
    y = P.mul(x, P.power_of_two(inv), idx, m)
    return P.dot(v, y, idx, m) * rms_norm(P, y, idx, m)[1]


def rms_norm_double_backward(P: Any, v: Any, g: Any, x: Any, inv: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    scale = P.power_of_two(inv)
    y = P.mul(x, scale, idx, m)
    out, inv = rms_norm(P, y, idx, m)
    along = P.dot(v, y, idx, m) * inv
    normal = P.mul(y, _inverse(P, out, P.ones_like(out)), idx, m)
    return along, P.mul(v - P.mul(normal, along, idx, m), g * inv * scale, idx, m)


def max_norm(P: Any, x: Any, at: Any) -> Any:
    """‖x[at]‖, 0 where `at` is -1."""
    row = P.pick(x, at)
    return _safe_sqrt(P, P.sum_columns(row * row))


def _scaled_row(P: Any, x: Any, at: Any) -> tuple[Any, Any, Any]:
    """The row at the maximum times a power of two, that power, and 1 / the norm of the scaled row."""
    row = P.pick(x, at)
    size = P.sum_columns(P.absolute(row))
    scale = P.power_of_two(_inverse(P, size, P.ones_like(size)))
    row = row * P.column(scale, row)
    norm = _safe_sqrt(P, P.sum_columns(row * row))
    return row, scale, _inverse(P, norm, P.ones_like(norm))


def max_norm_backward(P: Any, g: Any, x: Any, at: Any, idx: Any, m: Any) -> Any:
    row, _, inverse = _scaled_row(P, x, at)
    return P.place(row * P.column(g * inverse, row), at, x)


def max_norm_tangent(P: Any, v: Any, x: Any, at: Any, idx: Any, m: Any) -> Any:
    row, _, inverse = _scaled_row(P, x, at)
    return P.sum_columns(row * P.column(inverse, row) * P.pick(v, at))


def max_norm_double_backward(P: Any, v: Any, g: Any, x: Any, at: Any, idx: Any, m: Any) -> tuple[Any, Any]:
    direction = P.pick(v, at)
    row, scale, inverse = _scaled_row(P, x, at)
    normal = row * P.column(inverse, row)
    along = P.sum_columns(normal * direction)
    across = direction - normal * P.column(along, row)
    return along, P.place(across * P.column(g * inverse * scale, row), at, x)
