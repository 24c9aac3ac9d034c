# SPDX-License-Identifier: Apache-2.0
"""Operations over segments alone, and those that need only where the segments are."""

from typing import Any

import warp as wp

from ._registry import KEPT, family
from ._rule import decoded, load, rounded, run_end
from .element import along, norm

L = wp.array(dtype=wp.int32)


@family(["segment"])
def segment(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    """One value a segment; none of these kernels reads idx."""
    K = KEPT[S]
    Rows = wp.array2d(dtype=S)
    Kept = wp.array2d(dtype=K)

    def divide(p: Rows, counts: L, out: Rows):
        s, k = wp.tid()
        v = wp.float64(0.0)
        if counts[s] != 0:
            v = load(p, s, k) / wp.float64(counts[s])
        out[s, k] = rounded(v, S(0.0))

    def scale(wide: wp.array(dtype=wp.float64), q: Kept, out: Rows):
        s = wp.tid()
        inv = load(q, s, 0)
        v = wide[s] * decoded(inv)
        if inv == wp.float64(0.0) and wide[s] != wide[s]:
            v = wp.float64(0.0)  # of data that is all zero, the gradient is 0 by definition: 0 times inf is 0
        out[s, 0] = rounded(v, S(0.0))

    def at_maximum(x: Rows, y: Rows, at: L, out: Rows):
        """<x / ||x||, y> at the argmax."""
        s = wp.tid()
        v = wp.float64(0.0)
        i = at[s]
        if i >= 0 and i < x.shape[0]:
            length = norm(x, i)
            if length != wp.float64(0.0):
                v = along(x, y, i, length)
        out[s, 0] = rounded(v, S(0.0))

    def clear(none: int, out: Rows, aux: Rows, inv: Kept, wide: wp.array2d(dtype=wp.float64), counts: L):
        """What a reduction says of empty segments, for all of them."""
        s, k = wp.tid()
        if k < out.shape[1]:
            out[s, k] = S(0.0)
        if k < aux.shape[1]:
            aux[s, k] = S(0.0)
        if k < inv.shape[1]:
            inv[s, k] = K(0.0)
        if k < wide.shape[1]:
            wide[s, k] = wp.float64(0.0)
        if k == 0 and counts.shape[0] > 0:
            counts[s] = none

    return {"divide": divide, "scale": scale, "at_maximum": at_maximum, "clear": clear}


@family(["count"])
def count(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    """How long each run is. Empty segments are not written: `clear` comes first."""

    def lengths(idx: wp.array(dtype=I), n: int, m: int, counts: L):
        i = wp.tid()
        s = idx[i]
        if s >= I(0) and s < I(m):
            first = i == 0
            if i > 0:
                first = idx[i - 1] != s
            if first:
                counts[int(s)] = run_end(idx, i, n) - i

    return {"lengths": lengths}
