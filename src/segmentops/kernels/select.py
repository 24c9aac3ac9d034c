# SPDX-License-Identifier: Apache-2.0
"""Rows picked at positions, by column, or placed there: plain kernels, one value per thread."""

from typing import Any

import warp as wp

from ._registry import family


@family(["select"])
def select(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    Rows = wp.array2d(dtype=S)
    Positions = wp.array2d(dtype=wp.int32)
    Index = wp.array(dtype=I)

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

    return {"pick": pick, "place": place}
