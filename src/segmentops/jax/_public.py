# SPDX-License-Identifier: Apache-2.0
"""The body of the public functions: checks, then the primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ops.table import OPERATIONS
from . import _arguments, _compat, _index, _primitives


def public(name: str, labels: Sequence[str]) -> Callable[..., Any]:
    """The function `(*arrays, idx, num_segments)` of operation `name`; `labels` are the operands' public names."""
    op, full = OPERATIONS[name], "segmented_" + name
    several = len(op.results) > 1

    def function(*args: Any) -> Any:
        *arrays, idx, num_segments = args
        arrays, idx = [_arguments.placed(a) for a in arrays], _arguments.given(idx)
        m = _arguments.check(full, op, labels, arrays, idx, num_segments)
        if not isinstance(idx, _compat.Tracer) and not _compat.under_jit():
            _index.check(full, idx, m)
        out = _primitives.bind(name, *arrays, idx=_index.placed(idx), m=m)
        return out[0] if several else out

    return function
