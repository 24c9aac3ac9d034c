# SPDX-License-Identifier: Apache-2.0
"""One JAX primitive for each operation: types, tangents, transposes and batching, read from the table.

A primitive takes its operands, then idx, and has the static parameter m; its results are a list. All of it is built
once for each line of the table, and for the tangents of `_operations` when they are first needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..ops import calculus, formulas, table
from ..ops.calculus import PROGRAMS, Program
from ..ops.table import OPERATIONS, Operation
from . import _arrays, _batching, _compat, _compose, _lowering, _operations
from ._arguments import dtype_of
from ._compat import Primitive, Zero, is_undefined
from ._operations import Tangent

PRIMITIVES: dict[str, Primitive] = {}

Rule = Callable[..., Any]


def bind(name: str, *tensors: Any, idx: Any, m: int) -> Any:
    """Operation `name`: one array, or a list of several."""
    outs = _bind(PRIMITIVES[name], *tensors, idx, m=m)
    return outs[0] if len(outs) == 1 else outs


def _bind(primitive: Primitive, *args: Any, m: int) -> list[Any]:
    return primitive.bind(*_compat.same_axes(args), m=m)


def _apply(idx: Any, m: int) -> Rule:
    return lambda name, *operands: bind(name, *operands, idx=idx, m=m)


def _evaluate(terms: Sequence[calculus.Term], values: dict[str, Any], idx: Any, m: int) -> Any:
    """The sum of terms, rounded once; None if there is none."""
    if len(calculus.calls(terms, values)) < 2:
        return calculus.evaluate(terms, values, _apply(idx, m), jnp.add)
    found = calculus.evaluate(terms, {n: _wide(v) for n, v in values.items()}, _apply(idx, m), jnp.add)
    return _compose.in_dtype(found, next(iter(values.values())).dtype)


def _wide(array: Any) -> Any:
    """Half precision as float32, the dtype of its by-products."""
    return array.astype(jnp.float32) if array.dtype.itemsize == 2 else array


# ------------------------------------------------------------------------------------------- types


def _types(op: Operation) -> Rule:
    def types(*args: Any, m: int) -> list[Any]:
        *operands, idx = args
        n = idx.shape[0]
        shapes = op.result_shapes([o.shape for o in operands], n, m)
        dtypes = [dtype_of(r, operands[0].dtype, n) for r in op.results]
        like = next((a for a in args if not a.sharding.mesh.empty), idx)
        return [_compat.result_type(s, d, like) for s, d in zip(shapes, dtypes, strict=True)]

    return types


def _define(
    op: Operation, jvp: Rule, transpose: Rule | None, expression: Callable[..., Sequence[Any]] | None = None
) -> Primitive:
    """The primitive of an operation; `expression(*operands, idx, m=...)` says it in terms of others."""

    def batch(args: Any, dims: Any, *, m: int) -> Any:
        return batched(args, dims, m=m)

    made = _compat.primitive(
        "segmented_" + op.name,
        _types(op),
        jvp,
        transpose,
        batch,
        expression or _lowering.on_xla(op),
        {} if expression else {"cpu": _lowering.on_cpu(op), "cuda": _lowering.on_cuda(op)},
    )
    batched = _batching.rule(op, lambda *args: _bind(made, *args[:-1], m=args[-1]))
    return made


# ------------------------------------------------------------------------------------------- programs


def _tangents(of: Tangent | str, op: Operation, program: Program, get: Callable[[], Primitive]) -> Rule:
    """Each output's tangent, by one operation where they are several."""

    def jvp(primals: Any, tangents: Any, *, m: int) -> Any:
        *operands, idx = primals
        outs = _bind(get(), *primals, m=m)
        moves = {n: t for n, t in zip(program.inputs, tangents, strict=False) if type(t) is not Zero}
        found = [_compat.zero_like(o) for o in outs]
        if moves and len(outs) == 1:
            values = dict(zip(program.inputs, operands, strict=True))
            if isinstance(of, str):
                values |= {"d" + n: t for n, t in moves.items()}
                return outs, [_evaluate(calculus.tangent(program, "out", tuple(moves)), values, idx, m)]
        if moves:
            tangent = _operations.tangent(of, tuple(moves))
            parts = _bind(_tangent_primitive(tangent), *operands, *moves.values(), idx, m=m)
            for i, part in zip(tangent.results, parts, strict=True):
                found[i] = part
        return outs, found

    return jvp


def _transpose(op: Operation, program: Program) -> Rule:
    def transpose(cotangents: Any, *args: Any, m: int) -> list[Any]:
        *operands, idx = args
        wanted = [n for n, o in zip(program.inputs, operands, strict=True) if is_undefined(o)]
        arrived = {o: c for o, c in zip(program.outputs, cotangents, strict=True) if type(c) is not Zero}
        terms = _operations.linear_transpose(program, wanted, {o: f"cotangent of {o}" for o in arrived})
        values = {n: o for n, o in zip(program.inputs, operands, strict=True) if not is_undefined(o)}
        values |= {f"cotangent of {o}": c for o, c in arrived.items()}
        one = _operations.fused(list(terms.values()))
        if one:
            name, inputs = one
            found = dict(zip(wanted, bind(name, *(values[i] for i in inputs), idx=idx, m=m), strict=True))
        else:
            found = {n: _evaluate(ts, values, idx, m) for n, ts in terms.items()}
        return _in_place(program.inputs, operands, found)

    return transpose


def _in_place(names: Sequence[str], operands: Sequence[Any], found: dict[str, Any]) -> list[Any]:
    """Cotangents in the order of the operands and idx: None for what is not transposed, zero where there is none."""
    return [
        None if not is_undefined(o) else found[n] if found.get(n) is not None else _compat.zero_cotangent(o)
        for n, o in zip(names, operands, strict=True)
    ] + [None]


def _define_program(of: Tangent | str) -> Primitive:
    op, program = (OPERATIONS[of], PROGRAMS[of]) if isinstance(of, str) else (of.op, of.program)
    expression = None
    if not isinstance(of, str):

        def expression(*args: Any, m: int) -> list[Any]:
            values = dict(zip(program.inputs, args, strict=False))
            return [_evaluate(terms, values, args[-1], m) for terms in program.outputs.values()]

    made = _define(op, _tangents(of, op, program, lambda: made), _transpose(op, program), expression)
    return made


@functools.cache
def _tangent_primitive(tangent: Tangent) -> Primitive:
    return _define_program(tangent)


# ------------------------------------------------------------------------------------------- norms
#
# With b what the forward keeps (inv of rms_norm, at of max_norm), n = backward(1, x, b) the gradient and H its
# derivative, which is symmetric:
#   norm                 out
#   norm_tangent         <x', n>                 in x', transposed: backward
#   backward             g n                     in g, transposed: norm_tangent
#   backward_tangent     g' n + g H x'           in g', x', transposed: double_backward
#   double_backward      <v, n>, g H v           in v: g_gg n + g H g_gx; in g: <g_gx, H v>
#
# A sum over a segment takes its terms where n and H are not 0 by definition, since x' may be infinite elsewhere, and
# half precision is rounded at the end: no <x', n> is a dot with an array n, no <u, H v> one with an array H v.


def _define_norm(name: str) -> None:
    first, second = name + "_backward", name + "_double_backward"
    tangent = _operations.norm_tangent(name)

    def curvature(u: Any, v: Any, x: Any, b: Any, idx: Any, m: int) -> Any:
        """<u, H v>, not rounded: the derivative of <u, n> along v."""
        return _jvp_of(lambda x: _compose.wide(tangent.name, _NAMESPACE, (u, x, b), idx, m), [x], [v])[1][0]

    # the norm
    def norm_jvp(primals: Any, tangents: Any, *, m: int) -> Any:
        x, idx = primals
        out, b = _bind(PRIMITIVES[name], x, idx, m=m)
        moved = bind(tangent.name, tangents[0], x, b, idx=idx, m=m) if type(tangents[0]) is not Zero else None
        return [out, b], [_compat.zero_like(out) if moved is None else moved, _compat.zero_like(b)]

    # <x', n>
    def tangent_expression(dx: Any, x: Any, b: Any, idx: Any, *, m: int) -> list[Any]:
        return [bind(second, dx, jnp.ones_like(x, shape=(m,)), x, b, idx=idx, m=m)[0]]

    def tangent_jvp(primals: Any, tangents: Any, *, m: int) -> Any:
        dx, x, b, idx = primals
        out = bind(tangent.name, dx, x, b, idx=idx, m=m)
        parts = []
        if type(tangents[1]) is not Zero:
            parts.append(curvature(dx, tangents[1], x, b, idx, m))
        if type(tangents[0]) is not Zero:
            moved, at = (_wide(tangents[0]), _wide(x)) if parts else (tangents[0], x)
            parts.append(bind(tangent.name, moved, at, b, idx=idx, m=m))
        return [out], [_sum(parts, out)]

    def tangent_transpose(cotangents: Any, dx: Any, x: Any, b: Any, idx: Any, *, m: int) -> list[Any]:
        (ct,) = cotangents
        found = _compat.zero_cotangent(dx) if type(ct) is Zero else bind(first, ct, x, b, idx=idx, m=m)
        return [found, None, None, None]

    # g n
    def first_jvp(primals: Any, tangents: Any, *, m: int) -> Any:
        g, x, b, idx = primals
        out = bind(first, g, x, b, idx=idx, m=m)
        moves = {o: t for o, t in zip(("g", "x"), tangents, strict=False) if type(t) is not Zero}
        if not moves:
            return [out], [_compat.zero_like(out)]
        return [out], _bind(backward_tangent(tuple(moves)), *moves.values(), g, x, b, idx, m=m)

    def first_transpose(cotangents: Any, g: Any, x: Any, b: Any, idx: Any, *, m: int) -> list[Any]:
        (ct,) = cotangents
        found = _compat.zero_cotangent(g) if type(ct) is Zero else bind(tangent.name, ct, x, b, idx=idx, m=m)
        return [found, None, None, None]

    # g' n + g H x'
    @functools.cache
    def backward_tangent(moving: tuple[str, ...]) -> Primitive:
        def expression(*args: Any, m: int) -> list[Any]:
            like = args[-3]
            if len(moving) > 1:
                args = (*map(_wide, args[:-2]), *args[-2:])
            moved, (g, x, b, idx) = dict(zip(moving, args, strict=False)), args[-4:]
            parts = [bind(first, moved["g"], x, b, idx=idx, m=m)] if "g" in moved else []
            parts += [bind(second, moved["x"], g, x, b, idx=idx, m=m)[1]] if "x" in moved else []
            return [_sum(parts, like)]

        def transpose(cotangents: Any, *args: Any, m: int) -> list[Any]:
            (ct,), (g, x, b, idx) = cotangents, args[-4:]
            if type(ct) is Zero:
                found = {}
            else:
                found = dict(zip(("g", "x"), bind(second, ct, g, x, b, idx=idx, m=m), strict=True))
            return _in_place((*moving, "", "", ""), args[:-1], found)

        def jvp(primals: Any, tangents: Any, *, m: int) -> Any:
            return _jvp_of(functools.partial(expression, m=m), primals, tangents)

        return _define(_operations.norm_backward_tangent(name, moving), jvp, transpose, expression)

    # <v, n>, g H v
    def second_jvp(primals: Any, tangents: Any, *, m: int) -> Any:
        outs = _bind(PRIMITIVES[second], *primals, m=m)
        b, idx = primals[-2:]

        def formula(v: Any, g: Any, x: Any, *_: Any) -> list[Any]:
            return _compose.composed(second, _NAMESPACE, (v, g, x, b), idx, m)

        return outs, _jvp_of(formula, primals, tangents)[1]

    def second_transpose(cotangents: Any, v: Any, g: Any, x: Any, b: Any, idx: Any, *, m: int) -> list[Any]:
        along, across = cotangents
        found: list[Any] = [None] * 5
        if is_undefined(v):
            arrived = [c for c in (along, across) if type(c) is not Zero]
            wide = _wide if len(arrived) > 1 else lambda array: array
            parts = [bind(first, wide(along), wide(x), b, idx=idx, m=m)] if type(along) is not Zero else []
            if type(across) is not Zero:
                parts.append(bind(second, wide(across), wide(g), wide(x), b, idx=idx, m=m)[1])
            found[0] = _sum(parts, x) if parts else _compat.zero_cotangent(v)
        if is_undefined(g):
            found[1] = (
                _compat.zero_cotangent(g)
                if type(across) is Zero
                else _compose.in_dtype(curvature(across, v, x, b, idx, m), x.dtype)
            )
        return found

    PRIMITIVES[name] = _define(OPERATIONS[name], norm_jvp, None)
    PRIMITIVES[tangent.name] = _define(tangent, tangent_jvp, tangent_transpose, tangent_expression)
    PRIMITIVES[first] = _define(OPERATIONS[first], first_jvp, first_transpose)
    PRIMITIVES[second] = _define(OPERATIONS[second], second_jvp, second_transpose)


# ------------------------------------------------------------------------------------------- selections


def _define_selection(op: Operation) -> Primitive:
    """Linear in its operand once the by-product, where the elements are, is known."""

    def jvp(primals: Any, tangents: Any, *, m: int) -> Any:
        x, idx = primals
        out, at = _bind(made, x, idx, m=m)
        zero = type(tangents[0]) is Zero
        moved = _compat.zero_like(out) if zero else bind("pick", tangents[0], at, idx=idx, m=m)
        return [out, at], [moved, _compat.zero_like(at)]

    made = _define(op, jvp, None)
    return made


def _sum(parts: Sequence[Any], like: Any) -> Any:
    if not parts:
        return _compat.zero_like(like)
    return _compose.in_dtype(functools.reduce(jnp.add, parts), like.dtype)


def _jvp_of(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """jax.jvp with symbolic zeros."""
    moving = [i for i, t in enumerate(tangents) if type(t) is not Zero]
    if not moving:
        outs = function(*primals)
        return outs, [_compat.zero_like(o) for o in outs]

    def partial(*moved: Any) -> Any:
        args = list(primals)
        for i, value in zip(moving, moved, strict=True):
            args[i] = value
        return function(*args)

    return jax.jvp(partial, [primals[i] for i in moving], [tangents[i] for i in moving])


def _primitive(name: str) -> Rule:
    return lambda *args: bind(name, *args[:-2], idx=args[-2], m=args[-1])


for _name in PROGRAMS:
    PRIMITIVES[_name] = _define_program(_name)
for _op in OPERATIONS.values():
    if _op.kind == table.NORM:
        _define_norm(_op.name)
    elif _op.kind == table.SELECTION:
        PRIMITIVES[_op.name] = _define_selection(_op)

_NAMESPACE = formulas.Primitives(_arrays, {name: _primitive(name) for name in table.PRIMITIVES})
