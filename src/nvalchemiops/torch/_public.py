"""The body of the public functions: checks, then the route.

The common case, plain eager CPU tensors that fit, is one function written by `source` (see
`_kernels.source` for why): some twenty cheap questions, then the engine. Whatever fails one of them goes
to `slow`, which raises the right error or takes the general route.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import OPERATIONS, Operation
from . import _arguments, _compat, _compose, _index, _kernels, _routes


def source(name: str) -> str:
    """Python source of the fast path of a public function."""
    op = OPERATIONS[name]
    names = [o.name for o in op.operands]
    everything = (*names, "idx")
    arguments = ", ".join(names)
    plain = " and ".join(f"type({t}) in _PLAIN" for t in names)
    data = " and ".join(f"({t}_p := {t}.data_ptr()) and {t}.is_cpu" for t in everything)
    positive = " and ".join(f"not {t}.is_neg()" for t in names)
    grad = " or ".join(f"{t}.requires_grad" for t in names)
    contiguous = " and ".join(f"{t}.is_contiguous()" for t in everything)
    call = "\n".join(_kernels.call(op, " " * 20))
    return f"""\
def {name}({arguments}, idx, m):
    if (
        not _dynamo() and type(m) is int and type(idx) is _Tensor and {plain}
        and not (_modes() or _functorch() or _ad._current_level >= 0 or _tracing() is not None
                 or _count_function_modes() and _function_modes())
    ):
        n = idx.numel()
        if {" and ".join(_fits(op))}:
            try: data = {data} and {positive}
            except RuntimeError: data = False
            if data:
                if n <= _LOOK: mode |= _setting.look
                else:
                    entry = _verdicts.get(id(idx))
                    if (entry is None or _setting.mode != "cached" or entry[0]() is not idx or entry[1] != idx._version
                            or entry[3] >= m or entry[2] != idx_p):
                        _check("segmented_{name}", idx, m)
                if ({grad}) and _grad(): return _apply({arguments}, idx, m, mode)
                if {contiguous}:
{call}
                return _kernel({arguments}, idx, m, mode)
    return _slow({arguments}, idx, m)
"""


def _fits(op: Operation) -> list[str]:
    """Conditions for arguments without an error; they also bind f and mode."""
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
            fits += [f"{t}.dim()", f"{t}.shape[0] == n"]
        else:
            fits.append(f"{t}.shape == {first}.shape")
    return fits


def public(name: str, labels: Sequence[str]) -> Callable[..., Any]:
    """The function `(*tensors, idx, num_segments)` of operation `name`; `labels` are the operands' public names."""
    scope = _kernels.scope(name)
    scope |= {
        "_dynamo": _compat.is_dynamo_compiling,
        "_modes": _compat.dispatch_modes,
        "_functorch": _compat.functorch_active,
        "_tracing": _compat.tracing,
        "_count_function_modes": _compat.count_function_modes,
        "_function_modes": _compat.function_modes,
        "_ad": _compat.forward_ad,
        "_grad": torch.is_grad_enabled,
        "_Tensor": Tensor,
        "_PLAIN": _routes.PLAIN,
        "_wide": _kernels.WIDE.get,
        "_function": _kernels.FUNCTIONS[name].get,
        "_LOOK": _index.LOOK,
        "_setting": _index.Setting,
        "_verdicts": _index.verdicts,
        "_check": _index.check,
        "_apply": _routes.APPLY[name],
        "_kernel": _kernels.KERNELS[name],
        "_slow": _make_slow(name, labels),
    }
    return _kernels.build(name, source(name), scope)


def _make_slow(name: str, labels: Sequence[str]) -> Callable[..., Any]:
    op, entry, target = OPERATIONS[name], _routes.ENTRIES[name], _routes.OPS[name]
    full = "segmented_" + name

    def slow(*args: Any) -> Any:
        *tensors, idx, m = args
        m = _arguments.check(full, op, labels, tensors, idx, m)
        if _compat.is_dynamo_compiling():
            if _compat.forward_ad._current_level >= 0:
                # the compiled graph enters this level where an operation of ours cannot see it
                return _compose.composed(name, _compose.ATEN, tuple(tensors), idx, m)
            return target(*tensors, idx, m)
        if _index.readable(idx):
            _index.check(full, idx, m)
        return entry(*tensors, idx, m)

    return slow
