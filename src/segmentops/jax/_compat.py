# SPDX-License-Identifier: Apache-2.0
"""Everything of JAX that is not part of its stable interface, in one place; written for jax >= 0.10."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, Tracer
from jax.export import is_symbolic_dim
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec, reshard

try:
    from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE as under_jit
except ImportError:  # then a constant idx inside jit is looked at when the program is traced

    def under_jit() -> bool:
        return False


try:
    from jax.experimental.jet import jet_rules as _jet_rules
except ImportError:  # then jet does not know the operations
    _jet_rules = {}


__all__ = [
    "Primitive", "Tracer", "Zero", "ad", "is_symbolic_dim", "is_undefined", "primitive", "replaying", "result_type",
    "under_jit", "zero_like",
]  # fmt: skip

Zero = ad.Zero
is_undefined = ad.is_undefined_primal


def zero_like(value: Any) -> Any:
    """The symbolic zero tangent of a value."""
    return Zero(jax.typeof(value).to_tangent_aval())


def zero_cotangent(undefined: Any) -> Any:
    """The symbolic zero cotangent of an operand that is being transposed."""
    return Zero(undefined.aval.to_ct_aval())


def result_type(shape: Sequence[Any], dtype: Any, like: Any) -> ShapedArray:
    """The type of a result: varying over the same axes of a mesh as the operand type `like`."""
    mesh = like.sharding.mesh
    sharding = None if mesh.empty else NamedSharding(mesh, PartitionSpec(*[None] * len(shape)))
    if sharding is None:
        return ShapedArray(tuple(shape), dtype)
    return like.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)


def same_axes(operands: Sequence[Any]) -> Sequence[Any]:
    """Operands that agree about the axes of a mesh.

    Inside `shard_map(check_vma=True)` they vary over the same ones. Explicitly sharded arrays are gathered: a segment
    may have elements on several devices.
    """
    if all(not getattr(jax.typeof(o).sharding.mesh, "axis_names", ()) for o in operands):
        return operands
    shardings = [jax.typeof(o).sharding for o in operands]
    operands = [
        reshard(o, NamedSharding(s.mesh, PartitionSpec())) if any(s.spec) else o
        for o, s in zip(operands, shardings, strict=True)
    ]
    varying = [jax.typeof(o).manual_axis_type.varying for o in operands]
    every = frozenset().union(*varying)
    if all(v == every for v in varying):
        return operands
    return [
        jax.lax.pcast(o, tuple(sorted(every - v)), to="varying") if v != every else o
        for o, v in zip(operands, varying, strict=True)
    ]


def replaying() -> bool:
    """Whether jax_debug_nans runs a compiled function once more without jit, to find where a NaN comes from.

    What idx holds was legal in the compiled one.
    """
    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "maybe_recursive_nan_check":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _taylor(p: Primitive) -> Callable[..., Any]:
    """The rule of `jax.experimental.jet`: the derivatives along a curve that has the Taylor coefficients given."""

    def rule(primals: Any, series: Any, **params: Any) -> Any:
        outs = p.bind(*primals, **params)
        floats = [i for i, o in enumerate(outs) if jnp.issubdtype(o.dtype, jnp.inexact)]

        def along(t: Any) -> Any:
            args = list(primals)
            for i, terms in enumerate(series):
                if jnp.issubdtype(args[i].dtype, jnp.inexact):
                    args[i] += sum(term * t.astype(term.dtype) ** k for k, term in enumerate(terms, 1))
            moved = p.bind(*args, **params)
            return [moved[i] for i in floats]

        found = [[jnp.zeros_like(o) for _ in series[0]] for o in outs]
        zero = jnp.zeros((), primals[0].dtype)
        for k in range(len(series[0])):
            along = functools.partial(_derivative, along)
            for i, value in zip(floats, along(zero), strict=True):
                found[i][k] = value / math.factorial(k + 1)
        return outs, found

    return rule


def _derivative(function: Callable[..., Any], t: Any) -> Any:
    return jax.jvp(function, (t,), (jnp.ones_like(t),))[1]


def by_samples(function: Callable[..., Any], args: Sequence[Any], dims: Sequence[int | None], key: Any) -> Any:
    """`function(args, dims)`, a batching rule: (results, their batch axes).

    Of explicitly sharded arrays each device works on the samples that it has; all other axes are gathered. `key` says
    what the function computes.
    """
    shardings = [jax.typeof(a).sharding for a in args]
    mesh = next((s.mesh for s in shardings if any(s.spec)), None)
    if mesh is None:
        return function(args, dims)
    axis = next((s.spec[d] for s, d in zip(shardings, dims, strict=True) if d is not None and s.spec[d]), None)
    specs = tuple(PartitionSpec() if d is None else PartitionSpec(*[None] * d, axis) for d in dims)
    args = [
        a if s.mesh.empty and spec == PartitionSpec() else reshard(a, NamedSharding(mesh, spec))
        for a, s, spec in zip(args, shardings, specs, strict=True)
    ]
    if axis is None:
        return function(args, dims)
    key = key, mesh, axis, tuple(dims)
    if key not in _by_samples:

        def local(*parts: Any) -> Any:
            outs, at = function(parts, dims)
            return [jnp.moveaxis(out, d, 0) for out, d in zip(outs, at, strict=True)]

        _by_samples[key] = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(axis)))
    outs = _by_samples[key](*args)
    return outs, [0] * len(outs)


_by_samples: dict[Any, Callable[..., Any]] = {}  # else each call would be traced and compiled


def primitive(
    name: str,
    types: Callable[..., Sequence[ShapedArray]],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None,
    batch: Callable[..., Any],
    lower: Callable[..., Any],
    lower_on: Mapping[str, Callable[..., Any]],
) -> Primitive:
    """A primitive with several results, all rules registered.

    The lowerings are functions of JAX arrays; `lower_on` has those for platforms of their own.
    """
    p = Primitive(name)
    p.multiple_results = True
    jitted: dict[Any, Callable[..., Any]] = {}

    def run(*args: Any, **params: Any) -> Any:
        key = tuple(sorted(params.items()))
        if key not in jitted:
            function = lambda *a: p.bind(*a, **params)  # noqa: E731
            function.__name__ = name
            jitted[key] = jax.jit(function)
        if not jax.config.jax_disable_jit:
            return jitted[key](*args)
        with jax.disable_jit(False):  # else the body would be run op by op, and come back here
            return jitted[key](*args)

    p.def_impl(run)
    p.def_abstract_eval(types)
    ad.primitive_jvps[p] = jvp
    if transpose is not None:
        ad.primitive_transposes[p] = transpose
    batching.primitive_batchers[p] = batch
    _jet_rules[p] = _taylor(p)
    mlir.register_lowering(p, mlir.lower_fun(lower, multiple_results=True))
    for platform, function in lower_on.items():
        mlir.register_lowering(p, mlir.lower_fun(function, multiple_results=True), platform=platform)
    return p
