# SPDX-License-Identifier: Apache-2.0
"""The body of the public functions: checks, then the primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..ops import check
from ..ops.table import OPERATIONS, SELECTION
from . import _arguments, _compat, _index, _primitives


def public(name: str) -> Callable[..., Any]:
    """The function `(*arrays, idx, num_segments)` of operation `name`."""
    op, full = OPERATIONS[name], "segmented_" + name
    several, selects = len(op.results) > 1, op.kind == SELECTION

    def function(*args: Any) -> Any:
        *arrays, idx, num_segments = args
        arrays, idx = [_arguments.placed(a) for a in arrays], _arguments.given(idx)
        m = _arguments.check(full, op, op.public, arrays, idx, num_segments)
        if not isinstance(idx, _compat.Tracer) and not _compat.under_jit():
            _index.check(full, idx, m)
        out = _primitives.bind(name, *arrays, idx=_index.placed(idx), m=m)
        return out[0] if several and not selects else out

    return function


def selection(name: str) -> Callable[..., Any]:
    """The function `(x, idx, num_segments, fill)` of a selection, whose empty segments get `fill`."""
    function = public(name)

    def run(x: Any, idx: Any, num_segments: Any, fill: Any) -> Any:
        check.fill(f"segmented_{name}", fill)
        out, at = function(x, idx, num_segments)
        return out if fill == 0 else jnp.where(at < 0, jax.lax.full_like(out, fill), out)

    return run
