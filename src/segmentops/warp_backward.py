# SPDX-License-Identifier: Apache-2.0
"""Segment operations on Warp arrays: launchers of first and second derivatives.

What `segmentops.warp` says of all launchers holds here. Names: ``g_…`` is the gradient that
arrives, ``gg_…`` the cotangent of a first-order gradient, ``…_extra`` an output that is one of several
contributions to a gradient. M is the number of segments. Nothing is accumulated: outputs are overwritten.

A ``double_backward`` is the adjoint of the ``backward`` of the same name: with
L = <gg, gradients of the backward> its outputs are the derivatives of L by ``g_out`` and the inputs.
Element-wise outputs are 0 where ``idx[i]`` is outside [0, M), unless said otherwise.

A value that is not a ``wp.array`` (or not an int, for M) raises ``TypeError``; a wrong dtype, shape or device
``ValueError``. The types S, V, T and K in the docstrings are those of `segmentops.warp`.

Examples
--------
>>> import warp as wp
>>> wp.config.log_level = 30
>>> from segmentops.warp_backward import segmented_mul_backward
>>> x = wp.array([1.0, 2.0, 3.0], dtype=wp.float32, device="cpu")
>>> y = wp.array([10.0, 100.0], dtype=wp.float32, device="cpu")
>>> idx = wp.array([0, 1, 1], dtype=wp.int32, device="cpu")
>>> grad_x, grad_y = wp.empty_like(x), wp.empty_like(y)
>>> g_out = wp.ones_like(x)
>>> segmented_mul_backward(g_out, x, y, idx, 2, grad_x, grad_y)
>>> grad_x.numpy(), grad_y.numpy()
(array([ 10., 100., 100.], dtype=float32), array([1., 5.], dtype=float32))
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import warp as wp

from .kernels import dispatch
from .kernels.signatures import SIGNATURES, Argument, check
from .ops import launchers
from .ops.calculus import Term

__all__ = [name for name in SIGNATURES if name.endswith(("_backward", "_forward_precompute"))]


def __dir__() -> list[str]:
    return list(__all__)


# ------------------------------------------------------------------ norms
def segmented_rms_norm_forward_precompute(
    x: wp.array, idx: wp.array, sum_sq: wp.array, counts: wp.array, out: wp.array, inv_norm: wp.array
) -> None:
    """`segmented_rms_norm`, and inv_norm[s] = 1 / (out[s] counts[s]), 0 where out[s] is 0.

    In float32, what is not a normal number is kept in another form, for the backward launchers alone: from 2^128 on (of
    subnormal data) as -2^-24 times the number, below 2^-126 as -2^48 times the number. It is negative then.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    sum_sq, out : wp.array
        S, shape (M,).
    inv_norm : wp.array
        K, shape (M,).
    counts : wp.array
        int32, shape (M,).
    """
    idx = check("segmented_rms_norm_forward_precompute", (x, idx, sum_sq, counts, out, inv_norm))
    dispatch.rms_norm(x, idx, sum_sq, counts, out, inv_norm)


def segmented_rms_norm_backward(
    g_out: wp.array, x: wp.array, inv_norm: wp.array, idx: wp.array, grad_x: wp.array
) -> None:
    """grad_x[i] = x[i] (g_out[s] inv_norm[s]).

    Parameters
    ----------
    g_out : wp.array
        S, shape (M,).
    inv_norm : wp.array
        K, shape (M,).
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        V, shape (N,).
    """
    check("segmented_rms_norm_backward", (g_out, x, inv_norm, idx, grad_x))
    dispatch.rms_norm_backward(g_out, x, inv_norm, idx, grad_x)


def segmented_rms_norm_double_backward(
    gg_x: wp.array,
    x: wp.array,
    g_out: wp.array,
    inv_norm: wp.array,
    counts: wp.array,
    idx: wp.array,
    M: int,
    grad_x_extra: wp.array,
    grad_g_out_extra: wp.array,
) -> None:
    """Adjoint of `segmented_rms_norm_backward`, the dependence of inv_norm on x included.

    With inner[s] = sum of <gg_x[i], x[i]>, kept in float64: grad_g_out_extra = inner inv_norm,
    grad_x_extra[i] = g_out inv_norm (gg_x[i] - (inner inv_norm) (counts inv_norm x[i])).

    Parameters
    ----------
    gg_x, x : wp.array
        V, shape (N,).
    g_out : wp.array
        S, shape (M,).
    inv_norm : wp.array
        K, shape (M,).
    counts : wp.array
        int32, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_x_extra : wp.array
        V, shape (N,).
    grad_g_out_extra : wp.array
        S, shape (M,).
    """
    idx = check(
        "segmented_rms_norm_double_backward",
        (gg_x, x, g_out, inv_norm, counts, idx, M, grad_x_extra, grad_g_out_extra),
    )
    dispatch.rms_norm_double_backward(gg_x, g_out, x, inv_norm, idx, grad_g_out_extra, grad_x_extra, counts)


def segmented_max_norm_forward_precompute(x: wp.array, idx: wp.array, out: wp.array, argmax_idx: wp.array) -> None:
    """`segmented_max_norm`, and argmax_idx[s], the smallest position of the maximum, -1 for empty segments.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,).
    argmax_idx : wp.array
        int32, shape (M,).
    """
    idx = check("segmented_max_norm_forward_precompute", (x, idx, out, argmax_idx))
    dispatch.max_norm(x, idx, out, argmax_idx)


def segmented_max_norm_backward(
    g_out: wp.array, x: wp.array, argmax_idx: wp.array, idx: wp.array, grad_x: wp.array
) -> None:
    """grad_x[i] = g_out[s] x[i] / ‖x[i]‖ at the argmax, 0 elsewhere and where ‖x[i]‖ = 0.

    Parameters
    ----------
    g_out : wp.array
        S, shape (M,).
    x : wp.array
        V, shape (N,).
    argmax_idx : wp.array
        int32, shape (M,), as of the forward operation.
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        V, shape (N,).
    """
    check("segmented_max_norm_backward", (g_out, x, argmax_idx, idx, grad_x))
    dispatch.max_norm_backward(g_out, x, argmax_idx, idx, grad_x)


def segmented_max_norm_double_backward(
    gg_gx: wp.array,
    g_out: wp.array,
    x: wp.array,
    argmax_idx: wp.array,
    idx: wp.array,
    grad_x_extra: wp.array,
    grad_g_out: wp.array,
) -> None:
    """Adjoint of `segmented_max_norm_backward`.

    At the argmax, with n = x / ‖x‖: grad_g_out[s] = <n, gg_gx>,
    grad_x_extra = (g_out / ‖x‖) (gg_gx - n <n, gg_gx>); 0 elsewhere and where ‖x‖ = 0.

    Parameters
    ----------
    gg_gx, x : wp.array
        V, shape (N,).
    g_out : wp.array
        S, shape (M,).
    argmax_idx : wp.array
        int32, shape (M,), as of the forward operation.
    idx : wp.array
        int32, shape (N,).
    grad_x_extra : wp.array
        V, shape (N,).
    grad_g_out : wp.array
        S, shape (M,).
    """
    check(
        "segmented_max_norm_double_backward",
        (gg_gx, g_out, x, argmax_idx, idx, grad_x_extra, grad_g_out),
    )
    dispatch.max_norm_double_backward(gg_gx, g_out, x, argmax_idx, idx, grad_g_out, grad_x_extra)


# ------------------------------------------------------------------ launchers that are transposes of others
Step = tuple[Callable[..., None], tuple[str, ...]]  # a function of `dispatch`, and the arguments that it gets


def _mean(x: wp.array, idx: wp.array, out: wp.array) -> None:
    dispatch.mean(x, idx, None, None, out)


def _copy(x: wp.array, out: wp.array) -> None:
    wp.copy(out, x)


# By term: what computes it, and its arguments after the operands.
_SINGLE: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "sum": (dispatch.sum_to, ("idx",)),
    "broadcast": (dispatch.broadcast, ("idx",)),
    "mean": (_mean, ("idx",)),
    "spread": (dispatch.spread, ("counts", "idx")),
    "dot": (dispatch.dot, ("idx",)),
    "mul": (dispatch.mul, ("idx",)),
    "matvec": (dispatch.matvec, ("idx",)),
    "matvec_t": (dispatch.matvec_t, ("idx",)),
    "outer": (dispatch.outer, ("idx",)),
    "copy": (_copy, ()),
    "restrict": (dispatch.restrict, ("idx", "M")),
    "divide": (dispatch.divide, ("denominator",)),
}
_PAIRS = {
    ("dot", "dot"): dispatch.dot_add,
    ("mul", "mul"): dispatch.mul_add,
    ("matvec", "matvec"): dispatch.matvec_add,
    ("restrict", "broadcast"): dispatch.add,
}


def _sum_of_products(copies: int, twice: bool, idx: wp.array, out: wp.array, *arrays: wp.array) -> None:
    products = arrays[copies:]
    pairs = zip(products[::2], products[1::2], strict=True)
    dispatch.linear(idx, out, *pairs, base=arrays[0] if copies else None, twice=twice)


def _step(output: str, terms: Sequence[Term]) -> Step:
    kinds = tuple(t.primitive for t in terms)
    operands = tuple(o for t in terms for o in t.operands)
    if len(terms) == 1:
        function, more = _SINGLE[kinds[0]]
        return function, (*operands, *more, output)
    if kinds in _PAIRS:
        return _PAIRS[kinds], (*operands, "idx", output)
    # products of an element's and its segment's arrays; of three, two are the same, and that comes last
    unique = sorted(dict.fromkeys(terms), key=lambda t: terms.count(t) + (t.primitive != "copy"))
    twice = len(unique) < len(terms)
    function = functools.partial(_sum_of_products, kinds.count("copy"), twice)
    return function, ("idx", output, *(o for t in unique for o in t.operands))


def _steps(outputs: Mapping[str, tuple[Term, ...]]) -> Iterator[Step]:
    """The calls that write the outputs: one each, but where the engine makes two in one pass."""
    left = dict(outputs)
    for gx, products in outputs.items():
        for gs, dots in outputs.items():
            if [t.primitive for t in (*products, *dots)] == ["mul", "dot"] and gs in left:
                (g, s), pair = products[0].operands, dots[0].operands
                if g in pair:
                    x = pair[1 - pair.index(g)]
                    yield dispatch.mul_backward, (g, x, s, "idx", gx, gs)
                    del left[gx], left[gs]
                    break
    for output, terms in left.items():
        yield _step(output, terms)


def _description(argument: Argument) -> str:
    if not argument.type:
        return f"{argument.name} : int\n    Number of segments."
    shape = f"shape ({argument.dimension.upper()},)"
    if argument.name == "idx":
        return f"idx : wp.array\n    int32, {shape}{', sorted' * argument.sorted}."
    kind = {"i": "int32", "A": "mat33 of the scalar type"}.get(argument.type, argument.type)
    return f"{argument.name} : wp.array\n    {kind}, {shape}."


def _derived(name: str) -> Callable[..., None]:
    arguments = SIGNATURES[name]
    names = [a.name for a in arguments]
    forward = name.removesuffix("_backward").removesuffix("_double")
    first = [a.name for a in SIGNATURES[forward + "_backward"]]
    if name == forward + "_backward":
        program = launchers.backward(forward, first)
    else:
        program = launchers.double_backward(forward, first, names)
    reduces = any(a.sorted for a in arguments)
    steps = [(f, tuple(map(names.index, given))) for f, given in _steps(program.outputs)]
    parameter = inspect.Parameter.POSITIONAL_OR_KEYWORD
    annotations = {a.name: wp.array if a.type else int for a in arguments}
    signature = inspect.Signature(
        [inspect.Parameter(n, parameter, annotation=annotations[n]) for n in names], return_annotation=None
    )

    def launcher(*args: Any, **named: Any) -> None:
        if named or len(args) != len(names):
            args = signature.bind(*args, **named).args
        values = list(args)
        ordered = check(name, args)
        if reduces:
            values[names.index("idx")] = ordered
        for function, given in steps:
            function(*[values[k] for k in given])

    per_segment = {a.name: a.dimension == "m" for a in arguments}
    formulas = [launchers.formula(o, terms, per_segment[o]) for o, terms in program.outputs.items()]
    launcher.__doc__ = "\n\n".join(
        [f"Adjoint of `{forward if name == forward + '_backward' else forward + '_backward'}`.",
         ",\n".join(formulas) + ".",
         "Parameters\n----------\n" + "\n".join(_description(a) for a in arguments) + "\n"]
    )  # fmt: skip
    launcher.__name__ = launcher.__qualname__ = name
    launcher.__signature__ = signature  # type: ignore[attr-defined]
    return launcher


globals().update(
    {n: _derived(n) for f in launchers.PROGRAMS for n in (f + "_backward", f + "_double_backward") if n in SIGNATURES}
)
