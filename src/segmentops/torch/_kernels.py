# SPDX-License-Identifier: Apache-2.0
"""The operations on CPU tensors, below autograd.

`call` takes any strided tensors and finds the engine's function, which compiles it. From then on the fast route does
the same natively for all dtypes that were seen.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch

from .. import native
from ..native._strided import STRIDED, strided
from ..ops.abi import after_results
from ..ops.table import OPERATIONS, Operand
from . import _fast, _index, _memory
from ._arguments import dtype_of

# The engine's functions by operation and dtype; empty until the first call, which compiles them.
FUNCTIONS: dict[str, dict[torch.dtype, Any]] = {name: {} for name in OPERATIONS}
SUFFIXES = {torch.float32: "_f32", torch.float64: "_f64", torch.float16: "_f16", torch.bfloat16: "_bf16"}
_WIDE = {torch.int32: 0, torch.int64: 1}  # bit 0 of the engine's mode
_SCRATCH = {"i32": torch.int32, "f64": torch.float64}


def _resolve(name: str, dtype: torch.dtype) -> Any:
    """The engine's function for an operation, or what stands in for it."""
    native_name = name + SUFFIXES[dtype]

    def find() -> Any:
        _fast.know(name, dtype, native.load().address(native_name))
        return getattr(native.load(), native_name)

    def substitute() -> Any:
        from . import _substitute  # imports Warp

        return _substitute.function(name, dtype)

    found = FUNCTIONS[name][dtype] = _fast.unless_it_fails(find, substitute)
    return found


def call(name: str, *args: Any) -> Any:
    """Operation `name` on `(*operands, idx, m, mode=0)`."""
    op = OPERATIONS[name]
    count = len(op.operands)
    _memory.check_operands(op, args[:count], args[count])
    tensors, idx = list(args[:count]), args[count].contiguous()
    m, mode = args[count + 1], sum(args[count + 2 :])
    n, like = idx.shape[0], tensors[0]
    shapes = [t.shape for t in tensors]
    dims = op.dims(shapes)

    def empty(array: Operand) -> torch.Tensor:
        lead = n if array.lead == "n" else m
        dtype = _SCRATCH.get(array.dtype or "") or dtype_of(array, like.dtype)
        return like.new_empty(lead, *(d for letter in array.trail for d in dims[letter]), dtype=dtype)

    outs = [empty(r) for r in op.results]
    after = [None if array is None else empty(array) for array in after_results(name)]
    sizes = [math.prod(dims.get(letter, ())) for letter in ("kj" if op.matrices else "k")]
    mode |= _WIDE[idx.dtype] | native.threads(n * math.prod(sizes)) << 8
    # By-products are small; data with strides is read where it is.
    tensors = [t.contiguous() if o.by_product else t for t, o in zip(tensors, op.operands, strict=True)]
    places: list[Any] = [t.data_ptr() for t in tensors]
    if not all(t.is_contiguous() for t in tensors):
        mode |= STRIDED
        apart = [strided(t.data_ptr(), t.shape, t.stride()) for t in tensors]
        places = [
            p if o.by_product else ctypes.addressof(s) for p, s, o in zip(places, apart, op.operands, strict=True)
        ]
    arrays = [idx, *outs, *after]
    function = FUNCTIONS[name].get(like.dtype) or _resolve(name, like.dtype)
    places += [None if a is None else a.data_ptr() for a in arrays]
    if function(*places, n, m, *sizes, mode) >= 0:
        raise ValueError(_index.explain(f"segmented_{name}", idx, m))
    return tuple(outs) if len(outs) > 1 else outs[0]


def _kernel(name: str) -> Callable[..., Any]:
    return _fast.kernel(name, lambda *args: call(name, *args))


KERNELS: dict[str, Callable[..., Any]] = {name: _kernel(name) for name in OPERATIONS}
