# SPDX-License-Identifier: Apache-2.0
"""Heat maps of a CSV of `benchmark_segment_ops.py`: speedups, and the time of ours over that of a copy."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from statistics import geometric_mean

import matplotlib

matplotlib.use("Agg")

import numpy as np  # noqa: E402
from cells import Row, place  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import LogNorm  # noqa: E402

PANELS = (  # column, title, colours, end of the scale
    ("speedup", "speedup over the fastest rival", "RdBu", 30),
    ("copy_ratio", "time over that of a copy (1: as fast)", "RdBu_r", 30),
)


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def heat_map(rows: Sequence[Row], path: pathlib.Path) -> pathlib.Path:
    """Writes a PNG; where several widths and dtypes meet, their geometric mean."""
    across = sorted({place(r, True) for r in rows})
    down = list(dict.fromkeys((r["operation"], r["order"]) for r in rows))
    wide, high = 2.5 + 0.62 * len(across), 1.2 + 0.31 * len(down)
    if len(across) > 8:
        figure, axes = plt.subplots(2, 1, figsize=(wide, 2 * high), layout="constrained")
    else:
        figure, axes = plt.subplots(1, 2, figsize=(2 * max(wide, 5), high), layout="constrained")
    first = rows[0]
    figure.suptitle(f"{first['framework']} on {first['device']}\n{first['machine']}", fontsize=9, wrap=True)
    for axis, (name, title, colours, end) in zip(axes, PANELS, strict=True):
        values = np.full((len(down), len(across)), np.nan)
        for i, pair in enumerate(down):
            for j, where in enumerate(across):
                there = [r for r in rows if (r["operation"], r["order"]) == pair and place(r, True) == where]
                if there:
                    values[i, j] = geometric_mean(float(r[name]) for r in there)
        image = axis.imshow(values, colours, norm=LogNorm(1 / end, end), aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = abs(np.log(value)) > 0.6 * np.log(end)
                axis.text(j, i, short(value), ha="center", va="center", fontsize=8, color="white" if dark else "black")
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(across)), ["\n".join(where[-1].rsplit(" ", 1)) for where in across], fontsize=8)
        axis.set_yticks(range(len(down)), [f"{op}, {order}" for op, order in down], fontsize=8)
        axis.set_xlabel("N / mean length" if across[0][0] == 0 else "lengths, segments, widths", fontsize=8)
        bar = figure.colorbar(image, ax=axis, pad=0.01, ticks=[0.1, 0.3, 1, 3, 10], format="%.3g")
        bar.minorticks_off()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
