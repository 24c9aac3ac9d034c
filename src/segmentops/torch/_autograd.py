# SPDX-License-Identifier: Apache-2.0
"""One kernel on the Autograd key for any operation that brings a rule for its derivatives.

`torch.library.register_autograd` is not enough: under `torch.func` it refuses reverse mode, and forward mode loses the
tangent without a word. The kernel here sorts out forward-mode levels, functorch levels and plain autograd, one level
at a time, and calls the operation again below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd import Function

from . import _compat
from ._compat import forward_ad

Needs = tuple[bool, ...]  # which tensor arguments need a gradient


class Plan(Protocol):
    """A backward, for one choice of the arguments that need a gradient."""

    @property
    def saved(self) -> Sequence[int]:
        """Positions in (*tensor arguments, *results) of what it keeps."""

    def gradients(self, cotangents: tuple[Any, ...], saved: tuple[Any, ...], rest: Any) -> Sequence[Any]:
        """A gradient or None for each tensor argument; `rest` are the arguments that are not tensors."""


class Rule(Protocol):
    """The derivatives of an operation whose first `tensors` arguments are tensors."""

    name: str
    tensors: int
    differentiable: tuple[int, ...]  # positions of the arguments that have a gradient
    by_products: tuple[int, ...]  # positions of the results that have none
    has_backward: bool  # else `composed` is differentiated

    def plan(self, needs: Needs) -> Plan:
        """The backward for the arguments that need a gradient."""

    def tangents(self, primals: Sequence[Any], moving: Sequence[Any], outs: Sequence[Any], rest: Any) -> Sequence:
        """A tangent or None for each result; `moving` has those of the arguments."""

    def composed(self, *args: Any) -> Any:
        """The operation from others that can be differentiated."""


def as_tuple(outs: Any) -> tuple[Any, ...]:
    return tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)


def make_function(
    rule: Rule, base: type, run: Callable[..., Any], dual: bool = False, faster: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """`apply` of the autograd Function whose forward is `run`; with `dual`, for forward mode, too.

    `faster` makes other functions from its forward and its backward that do the same.
    """
    count = rule.tensors
    def forward(ctx: Any, *args: Any) -> Any:
        outs = run(*args)
        many = type(outs) is tuple
        ctx.rest = args[count:]
        available = args[:count] + outs if many else (*args[:count], outs)
        ctx.save_for_backward(*[available[i] for i in rule.plan(ctx.needs_input_grad[:count]).saved])
        if many:
            ctx.set_materialize_grads(False)
            if rule.by_products:
                ctx.mark_non_differentiable(*[outs[i] for i in rule.by_products])
        if dual:
            ctx.save_for_forward(*available)
        return outs

    def backward(ctx: Any, *cotangents: Any) -> Any:
        rest, plan = ctx.rest, rule.plan(ctx.needs_input_grad[:count])
        return (*plan.gradients(cotangents, ctx.saved_tensors, rest), *[None] * len(rest))

    def jvp(ctx: Any, *moving: Any) -> Any:
        saved = ctx.saved_tensors
        moved = tuple(rule.tangents(saved[:count], moving[:count], saved[count:], ctx.rest))
        return moved if len(moved) > 1 else moved[0]

    both = faster(forward, backward) if faster else (forward, backward)
    methods: dict[str, Any] = dict(zip(("forward", "backward"), map(staticmethod, both), strict=True))
    if dual:
        methods["jvp"] = staticmethod(jvp)
    title = "".join(part.title() for part in rule.name.replace("::", "_").split("_"))
    return _compat.fast_apply(type(title, (base,), methods))


def register(library: Any, name: str, target: Any, rule: Rule) -> None:
    """Give the dispatcher's operation `target` its kernel on the Autograd key."""
    count = rule.tensors

    def below(*args: Any) -> Any:
        with _compat.lower():
            return target(*args)

    if rule.has_backward:
        eager = make_function(rule, Function, below)
        level = make_function(rule, _compat.OneLevelFunction, below)
        both = make_function(rule, Function, below, dual=True)

    def reverse(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(args[i].requires_grad for i in rule.differentiable):
            if not rule.has_backward:
                return rule.composed(*args)
            if not _compat.functorch_active():
                return eager(*args)
            if _compat.single_level is None:
                return rule.composed(*args)
            with _compat.single_level():
                return level(*args)
        with _compat.below_autograd():
            return target(*args)

    def autograd(*args: Any) -> Any:
        if not (_compat.forward_mode_active() and _compat.innermost_is_forward_mode()):
            return reverse(*args)
        pairs = [forward_ad.unpack_dual(t, level=0) for t in args[:count]]
        moving = tuple(pairs[i].tangent if i in rule.differentiable else None for i in range(count))
        if all(t is None for t in moving):
            return reverse(*args)
        if not rule.has_backward:
            return rule.composed(*args)
        if not _compat.functorch_active():  # what is kept for a backward must keep its tangent
            return both(*args)
        primals = tuple(p.primal for p in pairs)
        outs = target(*primals, *args[count:])
        many = as_tuple(outs)
        moved = rule.tangents(primals, moving, many, args[count:])
        made = [o if t is None else forward_ad.make_dual(o, t, level=0) for o, t in zip(many, moved, strict=True)]
        return tuple(made) if isinstance(outs, (tuple, list)) else made[0]

    library.impl(name, autograd, "Autograd")
