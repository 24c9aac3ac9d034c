# SPDX-License-Identifier: Apache-2.0
"""The table of operations. Everything that is known about an operation by its name is known here.

An operand or a result is written name[dimensions]: a leading n means one row per element, a leading m one row per
segment. In operations that know no j, k stands for any trailing shape. A star marks a by-product: not differentiable,
kept for the backward, never in half precision. `:i64` are positions of elements, -1 where there is none; `:i32` and
`:f64` are scratch of that type. With s = idx[i], the primitives are

    sum(x)[s] = sum of x[i]                  broadcast(y)[i] = y[s]
    mean(x)[s] = sum(x)[s] / count[s]        spread(y)[i] = y[s] / count[s]
    dot(x, y)[s] = sum of <x[i], y[i]>       mul(x, s)[i] = x[i] s[s]
    matvec(v, a)[i] = a[s]^T v[i]            matvec_t(w, a)[i] = a[s] w[i]
    outer(v, w)[s] = sum of v[i] w[i]^T
    pick(x, at)[s] = x[at[s]], by column     place(y, at)[i] = y[s] where at[s] = i, by column

An operation is of one of these kinds:

- a primitive: linear in each operand, each adjoint a primitive again, so that derivatives of any order, forward and
  reverse, are sums of primitives;
- a selection: `pick` at positions that are its by-product, linear once they are known;
- a program: sums of primitives computed in one call (`calculus` derives which), worth it where a benchmark says so;
- a norm: a function of sums, or of the largest element, which `formulas` spells out; and a norm's first and second
  derivative. Beyond those the formula is differentiated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PRIMITIVE, SELECTION, PROGRAM, NORM, DERIVATIVE = "primitive", "selection", "program", "norm", "derivative"


@dataclass(frozen=True)
class Operand:
    """One array of an operation: its leading dimension ("n" or "m") and its trailing ones."""

    name: str
    lead: str
    trail: tuple[str, ...]
    dtype: str | None = None
    by_product: bool = False
    optional: bool = False

    @classmethod
    def parse(cls, text: str) -> Operand:
        mark, name, dims, dtype = re.fullmatch(r"([*?]?)(\w+)\[([\w,]+)\](?::(\w+))?", text).groups()  # type: ignore[union-attr]
        lead, *trail = dims.split(",")
        return cls(name, lead, tuple(trail), dtype, mark == "*", mark == "?")


@dataclass(frozen=True)
class Operation:
    """A row of the table."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    kind: str = PROGRAM
    public: tuple[str, ...] = ()  # the public names of the operands; none: the operation is not public
    adjoints: Mapping[str, str] = field(default_factory=dict, compare=False)  # of a primitive: operand -> term in g
    extras: tuple[Operand, ...] = ()  # what the engine writes beside the results: scratch, or (?) only if asked to
    module: str = "core"  # the part of the engine that it is compiled with

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
        """Whether each column of the trailing shape is mapped by itself: then a batch can become one more column."""
        return all(o.trail == ("k",) for o in (*self.operands, *self.results))

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


def _row(kind: str, name: str, arrays: str, *, public: str = "", extras: str = "", **more: Any) -> Operation:
    operands, results, rest = (
        tuple(map(Operand.parse, part.split())) for part in (*arrays.split("->"), extras)
    )
    return Operation(name, operands, results, kind, tuple(public.split()), extras=rest, **more)


def _primitive(name: str, arrays: str, adjoints: dict[str, str], **more: Any) -> Operation:
    return _row(PRIMITIVE, name, arrays, adjoints=adjoints, **more)


_second = {"module": "second"}  # the rest of the second derivatives, matrices and maxima: compiled when first needed

_ROWS = [
    _primitive("sum", "x[n,k] -> out[m,k]", {"x": "broadcast(g)"}, public="x"),
    _primitive("mean", "x[n,k] -> out[m,k]", {"x": "spread(g)"}, public="x", extras="?sums[m,k] ?counts[m]:i32"),
    _primitive("broadcast", "y[m,k] -> out[n,k]", {"y": "sum(g)"}),
    _primitive("spread", "y[m,k] -> out[n,k]", {"y": "mean(g)"}, extras="scratch[m,k]"),
    _primitive("dot", "x[n,k] y[n,k] -> out[m]", {"x": "mul(y, g)", "y": "mul(x, g)"}, public="x y"),
    _primitive("mul", "x[n,k] s[m] -> out[n,k]", {"x": "mul(g, s)", "s": "dot(g, x)"}, public="x y"),
    _primitive(
        "matvec", "v[n,k] a[m,k,j] -> out[n,j]", {"v": "matvec_t(g, a)", "a": "outer(v, g)"}, public="v m", **_second
    ),
    _primitive("matvec_t", "w[n,j] a[m,k,j] -> out[n,k]", {"w": "matvec(g, a)", "a": "outer(g, w)"}, **_second),
    _primitive("outer", "v[n,k] w[n,j] -> out[m,k,j]", {"v": "matvec_t(w, g)", "w": "matvec(v, g)"}, **_second),
    _primitive("pick", "x[n,k] *at[m,k]:i64 -> out[m,k]", {"x": "place(g, at)"}, **_second),
    _primitive("place", "y[m,k] *at[m,k]:i64 -> out[n,k]", {"y": "pick(g, at)"}, **_second),
    _row(SELECTION, "max", "x[n,k] -> out[m,k] *at[m,k]:i64", public="x", **_second),
    _row(SELECTION, "min", "x[n,k] -> out[m,k] *at[m,k]:i64", public="x", **_second),
    _row(PROGRAM, "dot_add", "x[n,k] y[n,k] u[n,k] w[n,k] -> out[m]", **_second),
    _row(PROGRAM, "mul_add", "x[n,k] s[m] y[n,k] t[m] -> out[n,k]", **_second),
    _row(PROGRAM, "matvec_add", "v[n,k] a[m,k,j] w[n,k] b[m,k,j] -> out[n,j]", **_second),
    _row(PROGRAM, "mul_backward", "g[n,k] x[n,k] s[m] -> gx[n,k] gs[m]"),
    _row(PROGRAM, "dot_backward", "g[m] x[n,k] y[n,k] -> gx[n,k] gy[n,k]", **_second),
    _row(PROGRAM, "matvec_backward", "g[n,j] v[n,k] a[m,k,j] -> gv[n,k] ga[m,k,j]", **_second),
    _row(
        PROGRAM, "mul_double_backward", "ggx[n,k] ggs[m] g[n,k] x[n,k] s[m] -> gg[n,k] gx[n,k] gs[m]", **_second
    ),
    _row(
        PROGRAM, "dot_double_backward", "ggx[n,k] ggy[n,k] g[m] x[n,k] y[n,k] -> gg[m] gx[n,k] gy[n,k]", **_second
    ),
    _row(
        PROGRAM, "matvec_double_backward",
        "ggv[n,k] gga[m,k,j] g[n,j] v[n,k] a[m,k,j] -> gg[n,j] gv[n,k] ga[m,k,j]", **_second,
    ),
    _row(NORM, "rms_norm", "x[n,k] -> out[m] *inv[m]", public="x", extras="?sum_sq[m] ?counts[m]:i32"),
    _row(DERIVATIVE, "rms_norm_backward", "g[m] x[n,k] *inv[m] -> gx[n,k]"),
    _row(
        DERIVATIVE, "rms_norm_double_backward", "v[n,k] g[m] x[n,k] *inv[m] -> gg[m] gx[n,k]",
        extras="inner[m]:f64 counts[m]:i32", **_second,
    ),
    _row(NORM, "max_norm", "x[n,k] -> out[m] *at[m]:i64", public="x", **_second),
    _row(DERIVATIVE, "max_norm_backward", "g[m] x[n,k] *at[m]:i64 -> gx[n,k]", **_second),
    _row(
        DERIVATIVE, "max_norm_double_backward", "v[n,k] g[m] x[n,k] *at[m]:i64 -> gg[m] gx[n,k]", **_second,
    ),
]  # fmt: skip

OPERATIONS: dict[str, Operation] = {op.name: op for op in _ROWS}
PRIMITIVES = tuple(op.name for op in _ROWS if op.kind == PRIMITIVE)
PUBLIC = tuple(op.name for op in _ROWS if op.public)
