# SPDX-License-Identifier: Apache-2.0
"""The fast route: plain eager CPU tensors, straight to the engine.

Written as source, one function an operation (see `_kernels.source` for why): some twenty cheap questions, then
the call. Whatever fails a question goes the general route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..algebra import OPERATIONS, Operation
from . import _compat, _index, _kernels

_PLAIN = frozenset((Tensor, Parameter))


def _quiet(names: list[str]) -> str:
    """Nothing is active that wants to see the operation, and the arguments are no subclasses."""
    plain = " and ".join(f"type({t}) in _PLAIN" for t in names)
    return f"""\
not _dynamo() and type(idx) is _Tensor and {plain} and not (
        _modes() or _functorch() or _ad._current_level >= 0 or _tracing() is not None
        or _count_function_modes() and _function_modes()
    )"""


def _data(names: list[str]) -> str:
    """CPU memory behind every tensor, bound to <name>_p.

    No pointer (RuntimeError): a dead functorch wrapper, legacy vmap, sparse. 0: no elements, a zero tensor, meta.
    is_neg: a pending negation (`z.conj().imag`).
    """
    pointers = [f"({t}_p := {t}.data_ptr()) and {t}.is_cpu" for t in [*names, "idx"]]
    return " and ".join(pointers + [f"not {t}.is_neg()" for t in names])


def _grad(op: Operation) -> str:
    needed = " or ".join(f"{op.operands[i].name}.requires_grad" for i in op.differentiable)
    return f"({needed}) and _grad_enabled()"


def entry_source(name: str) -> str:
    """Source of an operation's entry for calls of the library itself: arguments fit and idx is valid."""
    op = OPERATIONS[name]
    names = [o.name for o in op.operands]
    arguments = ", ".join(names)
    return f"""\
def {name}({arguments}, idx, m):
    if {_quiet(names)}:
        try: data = {_data(names)}
        except RuntimeError: data = False
        if data:
            if {_grad(op)}: return _apply({arguments}, idx, m)
            return _kernel({arguments}, idx, m)
    return _general({arguments}, idx, m)
"""


def public_source(name: str) -> str:
    """Source of a public function, which also checks the arguments. What does not fit goes to `_general`."""
    op = OPERATIONS[name]
    names = [o.name for o in op.operands]
    arguments = ", ".join(names)
    contiguous = " and ".join(f"{t}.is_contiguous()" for t in [*names, "idx"])
    call = "\n".join(_kernels.call(op, " " * 20))
    return f"""\
def {name}({arguments}, idx, m):
    if type(m) is int and {_quiet(names)}:
        n = idx.numel()
        if {" and ".join(_fits(op))}:
            try: data = {_data(names)}
            except RuntimeError: data = False
            if data:
                if n <= _LOOK: mode |= _setting.look
                else:
                    entry = _verdicts.get(id(idx))
                    if (entry is None or _setting.mode != "cached" or entry[0]() is not idx or entry[1] != idx._version
                            or entry[3] >= m or entry[2] != idx_p):
                        _check("segmented_{name}", idx, m)
                if {_grad(op)}: return _apply({arguments}, idx, m, mode)
                if {contiguous}:
{call}
                return _kernel({arguments}, idx, m, mode)
    return _general({arguments}, idx, m)
"""


def _fits(op: Operation) -> list[str]:
    """Conditions for arguments without an error; they also bind f, mode and shape."""
    first = op.operands[0].name
    fits = ["idx.dim() == 1", "(mode := _wide(idx.dtype)) is not None", f"(f := _function({first}.dtype))", "m > 0"]
    fits += [f"{o.name}.dtype is {first}.dtype" for o in op.operands[1:]]
    bound: dict[str, str] = {}
    for operand in op.operands:
        t = operand.name
        if op.matrices:
            fits += [f"{t}.dim() == {1 + len(operand.trail)}", f"{t}.shape[0] == {operand.lead}"]
            for i, letter in enumerate(operand.trail):
                here = f"{t}.shape[{1 + i}]"
                fits += [f"{here} == {bound[letter]}"] if letter in bound else []
                bound.setdefault(letter, here)
        elif not operand.trail:
            fits += [f"{t}.dim() == 1", f"{t}.shape[0] == {operand.lead}"]
        elif t == first:
            fits += [f"(shape := {t}.shape)", "shape[0] == n"]  # no dimensions: an empty shape
        else:
            fits.append(f"{t}.shape == shape")
    return fits


def _scope(name: str, apply: Callable[..., Any], general: Callable[..., Any]) -> dict[str, Any]:
    return _kernels.scope(name) | {
        "_dynamo": _compat.is_dynamo_compiling,
        "_modes": _compat.dispatch_modes,
        "_functorch": _compat.functorch_active,
        "_tracing": _compat.tracing,
        "_count_function_modes": _compat.count_function_modes,
        "_function_modes": _compat.function_modes,
        "_ad": _compat.forward_ad,
        "_grad_enabled": torch.is_grad_enabled,
        "_Tensor": Tensor,
        "_PLAIN": _PLAIN,
        "_wide": _kernels.WIDE.get,
        "_function": _kernels.FUNCTIONS[name].get,
        "_LOOK": _index.LOOK,
        "_setting": _index.Setting,
        "_verdicts": _index.verdicts,
        "_check": _index.check,
        "_kernel": _kernels.KERNELS[name],
        "_apply": apply,
        "_general": general,
    }


def entry(name: str, apply: Callable[..., Any], general: Callable[..., Any]) -> Callable[..., Any]:
    """An operation for the library itself; `apply` differentiates it, `general` takes what is not plain."""
    return _kernels.build(name, entry_source(name), _scope(name, apply, general))


def public(name: str, apply: Callable[..., Any], general: Callable[..., Any]) -> Callable[..., Any]:
    """An operation for users; `general` also raises the errors."""
    return _kernels.build(name, public_source(name), _scope(name, apply, general))
