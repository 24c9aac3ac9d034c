# SPDX-License-Identifier: Apache-2.0
"""Selections by column: where the extreme of each segment is, and rows picked at positions or placed there.

A thread takes a column of a run, or of an element: plain kernels, one value at a time.
"""

from typing import Any

import warp as wp

from ._registry import family
from ._rule import load, run_end


@family(["select"])
def select(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    Rows = wp.array2d(dtype=S)
    Positions = wp.array2d(dtype=wp.int32)
    Index = wp.array(dtype=I)

    def extreme(idx: Index, n: int, m: int, sign: int, x: Rows, out: Rows, at: Positions):
        """The first NaN, else the first of the largest (sign 1) or smallest (-1). Empty segments are not written."""
        i, k = wp.tid()
        s = idx[i]
        if s >= I(0) and s < I(m):
            first = i == 0
            if i > 0:
                first = idx[i - 1] != s
            if first:
                end = run_end(idx, i, n)
                best = i
                most = load(x, i, k) * wp.float64(sign)
                for j in range(i + 1, end):
                    v = load(x, j, k) * wp.float64(sign)
                    if v > most or (v != v and most == most):
                        best = j
                        most = v
                out[int(s), k] = x[best, k]
                at[int(s), k] = best

    def none(out: Rows, at: Positions):
        s, k = wp.tid()
        out[s, k] = S(0.0)
        at[s, k] = -1

    def pick(x: Rows, at: Positions, out: Rows):
        s, k = wp.tid()
        i = at[s, k]
        if i >= 0 and i < x.shape[0]:
            out[s, k] = x[i, k]
        else:
            out[s, k] = S(0.0)

    def place(idx: Index, m: int, y: Rows, at: Positions, out: Rows):
        i, k = wp.tid()
        s = idx[i]
        out[i, k] = S(0.0)
        if s >= I(0) and s < I(m):
            if at[int(s), k] == i:
                out[i, k] = y[int(s), k]

    return {"extreme": extreme, "none": none, "pick": pick, "place": place}
