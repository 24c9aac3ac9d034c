# SPDX-License-Identifier: Apache-2.0
"""The bodies of the public functions: the fast route, or the checks and then the general one; what TorchScript sees."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..ops import check
from ..ops.table import OPERATIONS, SELECTION
from . import _arguments, _compat, _compose, _distributed, _fast, _index, _routes, _source


def public(name: str) -> Callable[..., Any]:
    """The function `(*tensors, idx, num_segments)` of operation `name`."""
    op, entry, target = OPERATIONS[name], _routes.ENTRIES[name], _routes.OPS[name]
    full = "segmented_" + name

    def general(*args: Any) -> Any:
        *tensors, idx, m = args
        if any(map(_arguments.stands_in, args)):
            from . import segment_ops  # imports this module

            found = torch.overrides.handle_torch_function(getattr(segment_ops, full), args, *args)
            return found if len(op.results) == 1 else (found,)
        m = _arguments.check(full, op, op.public, tensors, idx, m)
        if _compat.is_dynamo_compiling():
            if _compat.forward_ad._current_level >= 0:
                # the compiled graph enters this level where an operation of ours cannot see it
                return _compose.composed(name, _compose.ATEN, tuple(tensors), idx, m)
            return target(*tensors, idx, m)
        _distributed.prepare(_routes.OPS.values())
        values = _distributed.check(full, op.public, tensors, idx)
        if _index.readable(values):
            _index.check(full, values, m)
        return entry(*tensors, idx, m)

    return _fast.function(name, _routes.APPLY[name], general, checks=True)


def selection(name: str) -> Callable[..., Any]:
    """The function `(x, idx, num_segments, fill)` of a selection, whose empty segments get `fill`."""
    function = public(name)

    def run(x: Any, idx: Any, m: Any, fill: Any) -> Any:
        check.fill(f"segmented_{name}", fill)
        if fill == 0:
            return function(x, idx, m)[0]
        if _arguments.stands_in(x) or _arguments.stands_in(idx):
            from . import segment_ops

            whole = getattr(segment_ops, f"segmented_{name}")
            return torch.overrides.handle_torch_function(whole, (x, idx), x, idx, m, fill)
        out, at = function(x, idx, m)
        return torch.where(at < 0, fill, out)

    return run


def scriptable(function: Any) -> None:
    """Let `torch.jit.script` compile calls of a public function: it sees one that calls the dispatcher's operation."""
    name = function.__name__

    @functools.cache
    def scripted() -> Callable[..., Any]:
        op = OPERATIONS[name.removeprefix("segmented_")]
        labels = ", ".join(list(inspect.signature(function).parameters)[: len(op.operands) + 1])
        result, fill = "found" if len(op.results) == 1 else "found[0]", ""
        if op.kind == SELECTION:
            result, fill = "torch.where(found[1] < 0, fill, found[0])", ", fill: float = 0.0"
        source = (
            f"def {name}({labels}, num_segments: int{fill}):\n"
            f"    found = torch.ops.{_routes.NAMESPACE}.{name}({labels}, num_segments)\n"
            f"    return {result}\n"
        )
        return _source.define(f"scripted {name}", source, {"torch": torch, "__name__": function.__module__})

    function.__prepare_scriptable__ = scripted
