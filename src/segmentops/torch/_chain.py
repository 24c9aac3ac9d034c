# SPDX-License-Identifier: Apache-2.0
"""A user's own Warp launchers as a PyTorch operation that compiles and is differentiated twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _process
from . import _autograd

__all__ = ["register_warp_op_chain"]

# A dispatcher's operation lives as long as the library that defined it.
_libraries: dict[str, Any] = _process.kept("libraries of users' operations", dict)

_SCALARS = {int: "SymInt", "int": "SymInt", float: "float", "float": "float", bool: "bool", "bool": "bool"}


def register_warp_op_chain(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    double_backward: Callable[..., Any] | None = None,
    *,
    differentiable: Sequence[int] = (0,),
    saves: int = 0,
    fake: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
) -> Callable[..., Tensor]:
    """Make an operation of launchers for its value, its gradient and its second derivative.

    The operation works eagerly, under `torch.compile(fullgraph=True)` as one opaque node, under
    `torch.func.grad`, `vjp`, `jacrev` and `vmap`, and with `create_graph=True`.

    Parameters
    ----------
    name : str
        `"namespace::name"`; `torch.ops.namespace.name` is defined, and the same with `_backward` and
        `_double_backward`.
    forward : callable
        `(*inputs) -> out`, or `(*inputs) -> (out, *saved)` with `saves` saved tensors. Its parameters are tensors,
        followed by those annotated `int`, `float` or `bool`.
    backward : callable
        `(g_out, *inputs, *saved)` -> a gradient for each position in `differentiable` (a tensor if there is one
        position, else a tuple), like the input.
    double_backward : callable, optional
        `(*gg, g_out, *inputs, *saved) -> (grad_g_out, *extra)`: `gg` are the cotangents of the gradients that
        `backward` returned, `extra` a gradient for each position in `differentiable`. Without it a second derivative
        raises.
    differentiable : sequence of int
        Positions of the inputs that have a gradient.
    saves : int
        Number of trailing outputs of `forward` that go to the backwards and not to the caller.
    fake : callable, optional
        `(*inputs)` -> empty outputs of the right shapes (as many as `forward` returns). Default: each like `inputs[0]`.
    vmap : callable, optional
        The batching rule, as `torch.library.register_vmap` takes it. Default: a loop over the batch.

    Returns
    -------
    callable
        `(*inputs) -> out`.

    Raises
    ------
    ValueError
        If a parameter of this function does not fit the others.
    NotImplementedError
        When the operation is used: for a second derivative without `double_backward`, for a third derivative, and in
        forward mode (never a silent zero tangent).

    Notes
    -----
    The launchers take and return torch tensors, on any device: `warp.from_torch` and `warp.launch` on the current
    stream, nothing that synchronises, so that CUDA graphs can capture them. They must not modify or return an input.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch import register_warp_op_chain
    >>> cube = register_warp_op_chain(
    ...     "readme::cube",
    ...     lambda x: x**3,
    ...     lambda g, x: 3 * g * x**2,
    ...     lambda gg, g, x: (3 * gg * x**2, 6 * gg * g * x),
    ... )
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> (g,) = torch.autograd.grad(cube(x).sum(), x, create_graph=True)
    >>> torch.autograd.grad(g.sum(), x)[0].tolist()
    [6.0, 12.0]
    """
    chain = _Chain(name, forward, backward, double_backward, tuple(differentiable), saves, fake)
    return chain.register(vmap)


class _Chain:
    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        double_backward: Callable[..., Any] | None,
        differentiable: tuple[int, ...],
        saves: int,
        fake: Callable[..., Any] | None,
    ) -> None:
        if name.count("::") != 1 or not all(part.isidentifier() for part in name.split("::")):
            raise ValueError(f"register_warp_op_chain: name must be 'namespace::name', got {name!r}")
        self.name = name
        self.launchers = (forward, backward, double_backward)
        self.saves = saves
        self.fake = fake
        parameters = list(inspect.signature(forward).parameters.values())
        kinds = [_SCALARS.get(p.annotation, "Tensor") for p in parameters]
        self.inputs = kinds.count("Tensor")
        if "Tensor" in kinds[self.inputs :]:
            raise ValueError(
                f"register_warp_op_chain: {name}: forward's parameters that are not tensors must come last"
            )
        if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
            raise ValueError(f"register_warp_op_chain: {name}: forward must have a fixed number of parameters")
        if not differentiable or not all(0 <= p < self.inputs for p in differentiable):
            raise ValueError(
                f"register_warp_op_chain: {name}: differentiable must name tensor inputs 0 to {self.inputs - 1}, "
                f"got {differentiable}"
            )
        self.differentiable = differentiable
        self.scalars = [f"{kind} s{i}" for i, kind in enumerate(kinds[self.inputs :])]

    def register(self, vmap: Callable[..., Any] | None) -> Callable[..., Tensor]:
        gradients = len(self.differentiable)
        forward = self._operation("", 0, 1 + self.saves, self._run_forward, self._fake_forward, vmap)
        backward = self._operation("_backward", 1 + self.saves, gradients, self._run_backward, self._fake_backward)
        double = self._operation(
            "_double_backward", gradients + 1 + self.saves, 1 + gradients, self._run_double, self._fake_double
        )
        _autograd.register(self.library, forward.name, forward.target, _Forward(self, backward.target))
        _autograd.register(self.library, backward.name, backward.target, _Backward(self, double.target))
        _autograd.register(self.library, double.name, double.target, _Double(self))

        def op(*inputs: Any) -> Tensor:
            return _autograd.as_tuple(forward.target(*inputs))[0]

        op.__name__ = op.__qualname__ = self.name.split("::")[1]
        op.__doc__ = self.launchers[0].__doc__
        path = "torch.ops." + self.name.replace("::", ".")
        vars(op)["__script_unsupported"] = f"{self.name}: in a script, call {path} instead, which is the same operation"
        return op

    @property
    def library(self) -> Any:
        namespace = self.name.split("::")[0]
        if namespace not in _libraries:
            _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
        return _libraries[namespace]

    def _operation(
        self,
        suffix: str,
        more: int,
        results: int,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        vmap: Callable[..., Any] | None = None,
    ) -> Any:
        """Define `<name><suffix>` with `more` tensors beside the inputs and register all but its Autograd kernel.

        The order of arguments is cotangents, inputs, saved, then the scalars.
        """
        namespace, name = self.name.split("::")
        name += suffix
        arguments = ", ".join([f"Tensor t{i}" for i in range(self.inputs + more)] + self.scalars)
        returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        self.library.define(f"{name}({arguments}) -> {returns}", tags=(torch.Tag.pt2_compliant_tag,))
        target = getattr(getattr(torch.ops, namespace), name).default

        def checked(*args: Any) -> Any:
            outs = _autograd.as_tuple(run(*args))
            if len(outs) != results:
                raise ValueError(f"{self.name}{suffix}: the launcher must return {results} tensors, got {len(outs)}")
            outs = tuple(o.contiguous() for o in outs)
            return outs if results > 1 else outs[0]

        for key in ("CPU", "CUDA"):
            self.library.impl(name, checked, key)
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=self.library)
        batched = vmap or _loop(target, results)
        torch.library.register_vmap(f"{namespace}::{name}", batched, lib=self.library)
        return _Operation(name, target)

    def _split(self, before: int, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """Arguments of a backward as (cotangents, inputs with the scalars, saved)."""
        end = before + self.inputs
        tensors = before + self.inputs + self.saves
        return args[:before], args[before:end] + args[tensors:], args[end:tensors]

    def _run_forward(self, *args: Any) -> Any:
        return self.launchers[0](*args)

    def _run_backward(self, *args: Any) -> Any:
        (g,), inputs, saved = self._split(1, args)
        return self.launchers[1](g, *inputs, *saved)

    def _run_double(self, *args: Any) -> Any:
        before, inputs, saved = self._split(len(self.differentiable) + 1, args)
        assert self.launchers[2] is not None
        return self.launchers[2](*before, *inputs, *saved)

    def _fake_forward(self, *args: Any) -> Any:
        if self.fake is not None:
            return self.fake(*args)
        outs = tuple(_like(args[0]) for _ in range(1 + self.saves))
        return outs if self.saves else outs[0]

    def _fake_backward(self, *args: Any) -> Any:
        outs = tuple(_like(args[1 + p]) for p in self.differentiable)
        return outs if len(outs) > 1 else outs[0]

    def _fake_double(self, *args: Any) -> Any:
        before = len(self.differentiable)
        return (_like(args[before]), *(_like(args[before + 1 + p]) for p in self.differentiable))


class _Operation:
    def __init__(self, name: str, target: Any) -> None:
        self.name, self.target = name, target


class _ChainRule:
    """What the rules of the three operations share: see `_autograd.Rule`."""

    has_backward = True
    suffix = ""

    def __init__(self, chain: _Chain, following: Any = None) -> None:
        self.chain, self.following = chain, following
        self.name = chain.name + self.suffix
        gradients = len(chain.differentiable)
        self.before = {"": 0, "_backward": 1, "_double_backward": gradients + 1}[self.suffix]
        self.tensors = self.before + chain.inputs + (chain.saves if self.suffix else 0)
        self.differentiable = (*range(self.before), *(self.before + p for p in chain.differentiable))
        self.by_products = () if self.suffix else tuple(range(1, 1 + chain.saves))

    def plan(self, needs: Any) -> Any:
        return self  # one for all needs

    @property
    def saved(self) -> Sequence[int]:
        return (*range(self.tensors), *(self.tensors + i for i in self.by_products))

    def tangents(self, *args: Any) -> Any:
        raise NotImplementedError(f"{self.chain.name}: forward-mode differentiation is not supported; use reverse mode")

    def composed(self, *args: Any) -> Any:
        raise NotImplementedError(f"{self.chain.name}: this version of torch does not support it under torch.func")

    def _spread(self, gradients: Any) -> list[Any]:
        found: list[Any] = [None] * self.tensors
        for position, gradient in zip(self.differentiable, _autograd.as_tuple(gradients), strict=True):
            found[position] = gradient
        return found


class _Forward(_ChainRule):
    def gradients(self, cotangents: Any, saved: Any, rest: Any) -> Any:
        if cotangents[0] is None:
            return [None] * self.tensors
        return self._spread(self.following(cotangents[0], *saved, *rest))


class _Backward(_ChainRule):
    suffix = "_backward"

    def gradients(self, cotangents: Any, saved: Any, rest: Any) -> Any:
        if self.chain.launchers[2] is None:
            raise NotImplementedError(
                f"{self.chain.name}: no double_backward was registered, so there is no second derivative"
            )
        inputs = saved[1 : 1 + self.chain.inputs]
        gg = [
            torch.zeros_like(inputs[p]) if c is None else c
            for c, p in zip(cotangents, self.chain.differentiable, strict=True)
        ]
        return self._spread(self.following(*gg, *saved, *rest))


class _Double(_ChainRule):
    suffix = "_double_backward"

    def gradients(self, cotangents: Any, saved: Any, rest: Any) -> Any:
        raise NotImplementedError(f"{self.chain.name}: there is no third derivative")


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _loop(target: Callable[..., Any], results: int) -> Callable[..., Any]:
    """The batching rule that calls the operation once for each sample."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        def sample(b: int) -> tuple[Any, ...]:
            return _autograd.as_tuple(
                target(*(a if d is None else a.select(d, b) for a, d in zip(args, in_dims, strict=True)))
            )

        samples = [sample(b) for b in range(info.batch_size)]
        outs = tuple(torch.stack(column) for column in zip(*samples, strict=True))
        return (outs, (0,) * results) if results > 1 else (outs[0], 0)

    return rule
