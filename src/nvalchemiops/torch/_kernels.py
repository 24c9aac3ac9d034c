# SPDX-License-Identifier: Apache-2.0
"""The native engine on plain CPU tensors: one function an operation, below autograd.

The functions are written by `source` from the operation's line in `nvalchemiops.algebra.SHAPES`, as
dataclasses writes `__init__`: for a dozen elements a call is mostly Python, and a loop over a description of
the arguments would be much of it. `print(source("mul"))` shows one.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from typing import Any

import torch

from .. import native
from ..algebra import OPERATIONS, Operand, Operation
from ..native._signatures import takes_idx
from . import _arguments, _index

# The engine's functions by operation and dtype; empty until the first call, which compiles them.
FUNCTIONS: dict[str, dict[torch.dtype, Any]] = {name: {} for name in OPERATIONS}
SUFFIXES = {torch.float32: "_f32", torch.float64: "_f64", torch.float16: "_f16", torch.bfloat16: "_bf16"}
WIDE = {torch.int32: 0, torch.int64: 1}  # bit 0 of the engine's mode

_DTYPES = {"i64": "_int64", "i32": "_int32", "f64": "_float64"}

# What the engine takes after an operation's results: scratch, or None for by-products not wanted here.
_EXTRA = {
    "mean": (None, None),
    "spread": (Operand("scratch", "m", ("k",)),),
    "rms_norm": (None, None),
    "rms_norm_double_backward": (Operand("inner", "m", (), "f64"), Operand("counts", "m", (), "i32")),
}


def source(name: str) -> str:
    """Python source of the function that runs operation `name` on tensors."""
    op = OPERATIONS[name]
    names = [o.name for o in op.operands]
    lines = [f"def {name}({', '.join(names)}, idx, m, mode=0):"]
    lines += [f"    if not {t}.is_contiguous(): {t} = {t}.contiguous()" for t in (*names, "idx")]
    lines += [f"    {t}_p = {t}.data_ptr()" for t in (*names, "idx")]
    lines += ["    n = idx.shape[0]", "    mode |= _WIDE[idx.dtype]"]
    lines += [f"    f = _functions.get({names[0]}.dtype) or _resolve({names[0]}.dtype)"]
    if not op.matrices:
        lines.append(f"    shape = {next(o.name for o in op.operands if o.trail)}.shape")
    lines += call(op, "    ")
    return "\n".join(lines) + "\n"


def call(op: Operation, indent: str) -> list[str]:
    """Lines that allocate the results and call f, given the pointers <name>_p, n, m, mode and shape."""
    first = op.operands[0].name
    outputs = [*op.results, *_EXTRA.get(op.name, ())]
    arrays = [f"{o.name}_p" for o in op.operands]
    arrays += ["idx_p"] if takes_idx(op.name) else []
    arrays += ["None" if out is None else f"{out.name}_.data_ptr()" for out in outputs]
    allocated = [out for out in outputs if out is not None]
    # Separate ints are parsed faster than a tuple of them.
    if op.matrices:
        where = {t: f"{o.name}.shape[{1 + i}]" for o in op.operands for i, t in enumerate(o.trail)}
        lines = [f"{t} = {where[t]}" for t in ("k", "j")]
        lines += [_new(out, first, [out.lead, *out.trail]) for out in allocated]
        size = "n * k * j"
    else:
        lines = ["if len(shape) == 1:", "    k = 1"]
        lines += ["    " + _new(out, first, [out.lead]) for out in allocated]
        lines += ["elif len(shape) == 2:", "    k = shape[1]"]
        lines += ["    " + _new(out, first, [out.lead, *out.trail]) for out in allocated]
        lines += ["else:", "    k = _prod(shape[1:])"]
        lines += ["    " + _new(out, first, [out.lead, *(["*shape[1:]"] if out.trail else [])]) for out in allocated]
        size = "n * k"
    lines += [
        f"if {size} >= _PAYS_FROM: mode |= _threads({size}) << 8",
        f"if f({', '.join(arrays)}, n, m, {'k, j' if op.matrices else 'k'}, mode) >= 0:",
        f"    raise ValueError(_explain('segmented_{op.name}', idx, m))",
        f"return {', '.join(r.name + '_' for r in op.results)}",
    ]
    return [indent + line for line in lines]


def _new(out: Operand, like: str, sizes: list[str]) -> str:
    dtype = f", dtype={_DTYPES[out.dtype]}" if out.dtype else f", dtype=_kept[{like}.dtype]" if out.by_product else ""
    return f"{out.name}_ = {like}.new_empty({', '.join(sizes)}{dtype})"


def scope(name: str) -> dict[str, Any]:
    """The globals that `call` needs."""
    functions = FUNCTIONS[name]

    def resolve(dtype: torch.dtype) -> Any:
        try:
            found = getattr(native.load(), name + SUFFIXES[dtype])
        except native.NativeBuildError as error:
            from . import _substitute

            _substitute.warn(str(error))
            found = _substitute.function(name, dtype)
        functions[dtype] = found
        return found

    return {
        "_functions": functions,
        "_resolve": resolve,
        "_explain": _index.explain,
        "_threads": native.threads,
        "_prod": math.prod,
        "_int64": torch.int64,
        "_int32": torch.int32,
        "_float64": torch.float64,
        "_kept": _arguments.KEPT,
        "_WIDE": WIDE,
        "_PAYS_FROM": native.PAYS_FROM,
    }


def build(name: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function `name` that `text` defines; a traceback shows its lines."""
    filename = f"<nvalchemiops {name} {len(linecache.cache)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), names)
    return names[name]


KERNELS: dict[str, Callable[..., Any]] = {name: build(name, source(name), scope(name)) for name in OPERATIONS}
