# SPDX-License-Identifier: Apache-2.0
"""Operations as compositions of others: beyond the fused orders, and where only ATen may be used.

Over the binding's own entries (`_derivatives.namespace`) a composition keeps the engine's sums and can be
differentiated again. Over `ATEN` it is torch's own operations, for a forward-mode level inside a compiled
graph, which an operation of ours cannot see. Both compute in float64 and round once.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..ops import formulas
from ..ops.table import OPERATIONS
from . import _arrays
from ._arguments import dtype_of

ATEN = formulas.plain(_arrays)


def composed(name: str, P: Any, tensors: tuple[Any, ...], idx: Tensor, m: Any) -> Any:
    """Operation `name` over the primitives P, in float64, rounded once."""
    results, dtype = OPERATIONS[name].results, tensors[0].dtype
    outs = formulas.composed(name, P, tensors, idx, m)
    outs = tuple(o.to(dtype_of(r, dtype)) for o, r in zip(outs, results, strict=True))
    return outs[0] if len(results) == 1 else outs
