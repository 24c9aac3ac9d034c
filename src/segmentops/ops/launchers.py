# SPDX-License-Identifier: Apache-2.0
"""The programs of Warp's launchers, and what follows: those of their first and second derivatives.

A launcher's backward is the transpose of its program, its double backward the transpose of the backward. The names of
the arguments say which is which: g_out (or g_xy for out_xy) is the cotangent of an output, grad_x the gradient of x,
gg_x or gg_gx the cotangent of that gradient, grad_x_extra a second contribution to the gradient of x.

>>> backward("segmented_mul", ["g_out", "x", "y", "grad_x", "grad_y"]).outputs
{'grad_x': (mul(g_out, y),), 'grad_y': (dot(g_out, x),)}
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from .calculus import Program, Term, adjoint

# Beside the primitives, maps of one operand that are their own transposes: `copy`; `restrict`, a copy that is 0 where
# an element has no segment; `divide`, by integers, 0 where they are 0. An operand or a result of scalars where the
# other has vectors is filled into, or summed over, the components.
_SELF_ADJOINT = ("copy", "restrict", "divide")

PROGRAMS = {
    "segmented_sum": "out = sum(x)",
    "segmented_component_sum": "out = sum(x)",
    "segmented_dot": "out = dot(x, y)",
    "segmented_inner_products": "out_xy = dot(x, y); out_xx = dot(x, x); out_yy = dot(y, y)",
    "segmented_broadcast": "out = broadcast(values)",
    "segmented_mul": "out = mul(x, y)",
    "segmented_add": "out = restrict(x) + broadcast(y)",
    "segmented_axpy": "out = copy(y) + mul(x, a)",
    "segmented_axpby": "out = mul(x, a) + mul(y, b)",
    "segmented_mean": "out = mean(x)",
    "segmented_matvec": "out = matvec(v, m)",
    "segment_div": "result = divide(numerator)",
}
# Arguments of the backwards that are not called after what they are the gradient of.
_ALIASES = {"M": "m", "y_in": "y"}


@functools.cache
def forward(launcher: str) -> Program:
    outputs = {}
    for statement in PROGRAMS[launcher].split(";"):
        name, expression = statement.split("=")
        outputs[name.strip()] = tuple(map(Term.parse, expression.split(" + ")))
    inputs = dict.fromkeys(o for terms in outputs.values() for t in terms for o in t.operands)
    return Program(tuple(inputs), outputs)


def backward(launcher: str, arguments: Sequence[str]) -> Program:
    """The program of a launcher's gradients, in the names of the arguments of its backward."""
    program = forward(launcher)
    cotangents = {o: "g_" + o.removeprefix("out_") for o in program.outputs}
    gradients = {a: _alias(a.removeprefix("grad_"), program) for a in arguments if a.startswith("grad_")}
    return _transposed(program, cotangents, gradients)


def double_backward(launcher: str, first: Sequence[str], second: Sequence[str]) -> Program:
    """The program of the gradients of a backward with arguments `first`, in the names of those of its own, `second`."""
    program = backward(launcher, first)
    cotangents = {}
    for argument in second:
        if argument.startswith("gg_"):
            of = argument.removeprefix("gg_")
            candidates = ("grad_" + of, "grad_" + of.removeprefix("g"))
            cotangents[next(c for c in candidates if c in program.outputs)] = argument
    names = {a: a.removeprefix("grad_").removesuffix("_extra") for a in second if a.startswith("grad_")}
    gradients = {a: _alias(name, program) for a, name in names.items()}
    return _transposed(program, cotangents, gradients)


def _alias(name: str, program: Program) -> str:
    return name if name in program.inputs else _ALIASES[name]


def _transposed(program: Program, cotangents: Mapping[str, str], gradients: Mapping[str, str]) -> Program:
    """From the cotangents of outputs to gradients, by name the inputs that they are the gradient of."""
    found: dict[str, tuple[Term, ...]] = dict.fromkeys(gradients, ())
    for output, cotangent in cotangents.items():
        for term in program.outputs[output]:
            for gradient, of in gradients.items():
                for position, operand in enumerate(term.operands):
                    if operand == of:
                        found[gradient] += (_adjoint(term, position, cotangent),)
    return Program((*cotangents.values(), *program.inputs), found)


def _adjoint(term: Term, position: int, cotangent: str) -> Term:
    if term.primitive in _SELF_ADJOINT:
        return Term(term.primitive, (cotangent,))
    return adjoint(term, position, cotangent)


# How a term reads: {0} and {1} are its operands.
_FORMULAS = {
    "sum": "sum of {0}[i]",
    "broadcast": "{0}[s]",
    "mean": "sum of {0}[i] / counts[s]",
    "spread": "{0}[s] / counts[s]",
    "dot": "sum of <{0}[i], {1}[i]>",
    "mul": "{0}[i] {1}[s]",
    "matvec": "{1}[s]ᵀ {0}[i]",
    "matvec_t": "{1}[s] {0}[i]",
    "outer": "sum of {0}[i] {1}[i]ᵀ",
    "copy": "{0}[i]",
    "restrict": "{0}[i]",
    "divide": "{0}[s] / denominator[s]",
}


def formula(output: str, terms: Sequence[Term], per_segment: bool) -> str:
    """An output of a program as one reads it."""
    counts: dict[Term, int] = {}
    for term in terms:
        counts[term] = counts.get(term, 0) + 1
    parts = [("2 " if n > 1 else "") + _FORMULAS[t.primitive].format(*t.operands) for t, n in counts.items()]
    text = " + ".join(parts)
    if text.count("sum of ") > 1 or text.startswith("2 sum of "):
        text = "sum of " + text.replace("sum of ", "")
    return f"{output}[{'s' if per_segment else 'i'}] = {text}"


assert all(t.primitive in _FORMULAS for name in PROGRAMS for ts in forward(name).outputs.values() for t in ts)
