# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/benchmarks.md anew from the CSV files of `benchmark_segment_ops.py`.

    python benchmarks/segment_ops/report.py

A table stands between two lines, `<!-- table out/torch_cpu_short.csv -->` and `<!-- end -->`; the first names its
CSV. What is outside is written by hand and stays, and so does the table of a CSV that is not there. With
`<!-- table FIRST again SECOND -->` the table says how far two measurements of the same cells agree.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, quantiles

from cells import FEW, SIZES, SKEWED_N, WIDE, WIDE_SCALARS, Row, key, place

TABLE = re.compile(r"(<!-- table (\S+)(?: again (\S+))? -->\n).*?(<!-- end -->)", re.DOTALL)
RATIOS = (
    "speedup", "copy_ratio", "graph_speedup", "segment_reduce_speedup", "torch_geometric_speedup",
    "numpy_groupies_speedup",
)  # fmt: skip
NOISE = 1.05  # a figure this near to its bound is not a miss


# ------------------------------------------------------------------ what is wanted
Figure = Callable[[Row, Sequence[Row]], float | None]  # of a row, among all rows; None where there is none


def column(name: str) -> Figure:
    return lambda row, _: float(row[name]) if row[name] else None


def above(row: Row, _: Sequence[Row]) -> float:
    """Microseconds above the framework."""
    return 1e3 * (float(row["ours_median_ms"]) - float(row["framework_median_ms"]))


def against(**changes: object) -> Figure:
    """Our time a scalar, over that of the row which is the same but for some columns."""

    def cost(row: Row) -> float:
        return float(row["ours_median_ms"]) / (int(row["total_elements"]) * int(row["width"]))

    def figure(row: Row, rows: Sequence[Row]) -> float | None:
        wanted = key(row | {name: str(value) for name, value in changes.items()})
        return next((cost(row) / cost(other) for other in rows if key(other) == wanted), None)

    return figure


@dataclass(frozen=True)
class Target:
    title: str
    figure: Figure
    bound: float
    least: bool  # whether the figure is to be at least, or else at most, the bound
    applies: Callable[[Row], bool]

    def figures(self, rows: Sequence[Row]) -> list[tuple[float, Row]]:
        """From the worst on."""
        pairs = [(self.figure(row, rows), row) for row in rows if self.applies(row)]
        known = [(value, row) for value, row in pairs if value is not None]
        return sorted(known, key=lambda pair: pair[0], reverse=not self.least)

    def missed(self, value: float) -> bool:
        return value * NOISE < self.bound if self.least else value > self.bound * NOISE


def n(row: Row) -> int:
    return int(row["total_elements"])


def length(row: Row) -> float:
    return float(row["avg_segment_length"])


def tiny(row: Row, framework: str) -> bool:
    return n(row) < 1000 and row["framework"] == framework


def simple(row: Row) -> bool:
    return row["operation"] in ("sum", "mul")


def forward(row: Row) -> bool:
    return row["order"] == "forward"


def even(row: Row) -> bool:
    """Of the sizes and widths of the full set."""
    return n(row) in SIZES and int(row["width"]) <= 3 and row["distribution"] == "random"


def reduces(row: Row) -> bool:
    return even(row) and forward(row) and row["operation"] not in ("mul", "mul_chain", "matvec")


def large(row: Row) -> bool:
    return n(row) >= 100_000


SPEEDUP, COPY = column("speedup"), column("copy_ratio")
FEW_SEGMENTS = against(num_segments=FEW[-1])
WIDTHS = against(width=WIDE[0], total_elements=WIDE_SCALARS // WIDE[0], num_segments=WIDE_SCALARS // WIDE[0] // 10)
TARGETS = (
    Target("N = 12, forward, sum and mul", SPEEDUP, 0.8, True, lambda r: tiny(r, "torch") and simple(r) and forward(r)),
    Target("N = 12, derivatives, sum and mul: us above the framework", above, 5.0, False,
           lambda r: tiny(r, "torch") and simple(r) and not forward(r)),
    Target("N = 12, other operations", SPEEDUP, 1.0, True, lambda r: tiny(r, "torch") and not simple(r)),
    Target("N = 12, JAX", SPEEDUP, 1.0, True, lambda r: tiny(r, "jax")),
    Target("N from 1000", SPEEDUP, 1.0, True, lambda r: 1000 <= n(r) < 100_000),
    Target("N from 1e5, length below 10", SPEEDUP, 1.5, True, lambda r: large(r) and length(r) < 10),
    Target("N from 1e5, length from 10", SPEEDUP, 2.0, True, lambda r: large(r) and length(r) >= 10),
    Target("N from 1e5: segment_reduce with ready lengths", column("segment_reduce_speedup"), 1.0, True, large),
    Target("length from 1000, forward: copies", COPY, 1.2, False, lambda r: reduces(r) and length(r) >= 1000),
    Target("length 100, forward: copies", COPY, 2.0, False, lambda r: reduces(r) and length(r) == 100),
    Target("mul and matvec, N from 1000, forward: copies", COPY, 2.0, False,
           lambda r: even(r) and forward(r) and n(r) >= 1000 and r["operation"] in ("mul", "matvec")),
    Target("few long segments: the time of many", FEW_SEGMENTS, 1.0, False,
           lambda r: n(r) == SKEWED_N and r["distribution"] == "random" and r["num_segments"] != str(FEW[-1])),
    Target("float16: the time of float32", against(dtype="float32"), 1.0, False, lambda r: r["dtype"] == "float16"),
    Target("odd widths: the time a scalar of width 32", WIDTHS, 1.5, False, lambda r: int(r["width"]) in WIDE[1:]),
)  # fmt: skip
MEAN = 6.0  # geometric mean of the speedups from N = 1e5 on


# ------------------------------------------------------------------ tables
def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def heading(*cells: object) -> Iterator[str]:
    yield line(*cells)
    yield "|" + " --- |" * len(cells)


def overview(rows: Sequence[Row]) -> Iterator[str]:
    across = sorted({place(r, False) for r in rows})
    yield from heading("operation, order", *(where[-1] for where in across))
    for op, order in dict.fromkeys((r["operation"], r["order"]) for r in rows):
        cells = []
        for where in across:
            there = [r for r in rows if (r["operation"], r["order"]) == (op, order) and place(r, False) == where]
            found = [float(r["speedup"]) for r in there]
            mean = f"{geometric_mean(found):.2f}" if found else ""
            cells.append(mean + (f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""))
        yield line(f"{op}, {order}", *cells)


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    yield from heading("ratio", "cells", "geometric mean", "least", "greatest")
    for name in RATIOS:
        if found := [float(r[name]) for r in rows if r[name]]:
            yield line(name, len(found), f"{geometric_mean(found):.2f}", min(found), max(found))


def targets(rows: Sequence[Row]) -> Iterator[str]:
    yield from heading("", "target", "wanted", "cells", "missed", "worst")
    for number, target in enumerate(TARGETS, start=1):
        if figures := target.figures(rows):
            missed = sum(target.missed(value) for value, _ in figures)
            wanted = f"{'at least' if target.least else 'at most'} {target.bound:g}"
            yield line(number, target.title, wanted, len(figures), missed, f"{figures[0][0]:.3g}")
    if found := [float(r["speedup"]) for r in rows if even(r) and large(r)]:
        mean = geometric_mean(found)
        yield line("", "N from 1e5: geometric mean", f"at least {MEAN:g}", 1, int(mean * NOISE < MEAN), f"{mean:.2f}")


def misses(rows: Sequence[Row]) -> Iterator[str]:
    """Every cell that misses a target, by the number of the target and from the worst on."""
    names = ("operation", "order", "dtype", "width", "total_elements", "num_segments", "distribution")
    titles = ("target", "operation", "order", "dtype", "width", "N", "M", "lengths")
    yield from heading(*titles, "ours, us", "theirs, us", "fastest rival", "figure", "wanted")
    for number, target in enumerate(TARGETS, start=1):
        for value, row in target.figures(rows):
            if target.missed(value):
                times = (f"{1e3 * float(row[name]):.1f}" for name in ("ours_median_ms", "framework_median_ms"))
                cells = (*(row[name] for name in names), *times, row["rival"], f"{value:.3g}", f"{target.bound:g}")
                yield line(number, *cells)


def sources(rows: Sequence[Row]) -> str:
    runs = dict.fromkeys((r["command"], r["machine"]) for r in rows)
    return "\n".join(f"`{command}`: {machine}." for command, machine in runs)


def report(rows: Sequence[Row]) -> str:
    parts = [sources(rows), *("\n".join(table(rows)) for table in (overview, ratios, targets))]
    heading, rule, *lines = misses(rows)
    if lines:
        title = f"<details><summary>{len(lines)} misses</summary>"
        parts += [title, "\n".join([heading, rule, *lines]), "</details>"]
    return "\n" + "\n\n".join(parts) + "\n\n"


def repeated(first: Sequence[Row], second: Sequence[Row]) -> str:
    """Of the cells of two measurements: the speedups of both, and how each cell's second compares with its first."""
    again = {key(r): float(r["speedup"]) for r in second}
    lines = list(heading("N", "cells", "first", "second", "second / first: lowest tenth", "median", "highest tenth"))
    for n in sorted({int(r["total_elements"]) for r in first}):
        rows = [r for r in first if int(r["total_elements"]) == n and key(r) in again]
        pairs = [(float(r["speedup"]), again[key(r)]) for r in rows]
        tenths = quantiles([b / a for a, b in pairs], n=10)
        means = (f"{geometric_mean(found):.2f}" for found in zip(*pairs, strict=True))
        lines.append(line(f"{n:,}", len(pairs), *means, *(f"{tenths[k]:.2f}" for k in (0, 4, 8))))
    return "\n" + "\n\n".join([sources([*first, *second]), "\n".join(lines)]) + "\n\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=pathlib.Path, nargs="?", default=pathlib.Path("docs/benchmarks.md"))
    document = parser.parse_args(argv).document

    def rewritten(match: re.Match[str]) -> str:
        files = []
        for path in map(pathlib.Path, filter(None, match.group(2, 3))):
            if not path.exists():
                print(f"{path} is not there: its table stays")
                return match[0]
            with path.open(newline="") as stream:
                files.append(list(csv.DictReader(stream)))
            print(f"{path}: {len(files[-1])} cells")
        return match[1] + (report(*files) if len(files) == 1 else repeated(*files)) + match[4]

    document.write_text(TABLE.sub(rewritten, document.read_text()))


if __name__ == "__main__":
    main()
