# SPDX-License-Identifier: Apache-2.0
"""The bodies of the public functions: the fast route, or the checks and then the general one; what TorchScript sees."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ops.table import OPERATIONS
from . import _arguments, _compat, _compose, _distributed, _fast, _index, _routes, _source


def public(name: str, labels: Sequence[str]) -> Callable[..., Any]:
    """The function `(*tensors, idx, num_segments)` of operation `name`; `labels` are the operands' public names."""
    op, entry, target = OPERATIONS[name], _routes.ENTRIES[name], _routes.OPS[name]
    full = "segmented_" + name

    def general(*args: Any) -> Any:
        *tensors, idx, m = args
        if any(map(_arguments.stands_in, args)):
            from . import segment_ops  # imports this module

            found = torch.overrides.handle_torch_function(getattr(segment_ops, full), args, *args)
            return found if len(op.results) == 1 else (found,)
        m = _arguments.check(full, op, labels, tensors, idx, m)
        if _compat.is_dynamo_compiling():
            if _compat.forward_ad._current_level >= 0:
                # the compiled graph enters this level where an operation of ours cannot see it
                return _compose.composed(name, _compose.ATEN, tuple(tensors), idx, m)
            return target(*tensors, idx, m)
        _distributed.prepare(_routes.OPS.values())
        values = _distributed.check(full, labels, tensors, idx)
        if _index.readable(values):
            _index.check(full, values, m)
        return entry(*tensors, idx, m)

    return _fast.function(name, _routes.APPLY[name], general, checks=True)


def scriptable(function: Any) -> None:
    """Let `torch.jit.script` compile calls of a public function: it sees one that calls the dispatcher's operation."""
    name = function.__name__

    @functools.cache
    def scripted() -> Callable[..., Any]:
        *labels, m = inspect.signature(function).parameters
        result = "" if len(OPERATIONS[name.removeprefix("segmented_")].results) == 1 else "[0]"
        source = (
            f"def {name}({', '.join(labels)}, {m}: int):\n"
            f"    return torch.ops.{_routes.NAMESPACE}.{name}({', '.join(labels)}, {m}){result}\n"
        )
        return _source.define(f"scripted {name}", source, {"torch": torch, "__name__": function.__module__})

    function.__prepare_scriptable__ = scripted
