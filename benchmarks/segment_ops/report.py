# SPDX-License-Identifier: Apache-2.0
"""Writes docs/benchmarks.md from the CSV files of `benchmark_segment_ops.py`.

    python benchmarks/segment_ops/report.py out/benchmark.csv --command "... --short" > docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import pathlib
import platform
from collections.abc import Iterable
from statistics import geometric_mean

Row = dict[str, str]


def machine() -> str:
    model = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} at the end"


def bound(row: Row) -> float:
    """The least speedup that is wanted of a cell."""
    n, length = int(row["total_elements"]), int(row["avg_segment_length"])
    if n < 1000:
        return 0.8 if row["operation"] in ("sum", "mul") else 1.0
    return 1.0 if n < 100_000 else 1.5 if length < 10 else 2.0


def table(rows: list[Row]) -> Iterable[str]:
    sizes = sorted({int(r["total_elements"]) for r in rows})
    yield f"| operation, order | {' | '.join(f'N = {n:,}' for n in sizes)} |"
    yield "| --- |" + " --- |" * len(sizes)
    for op, order in dict.fromkeys((r["operation"], r["order"]) for r in rows):
        cells = []
        for n in sizes:
            found = [
                float(r["speedup"])
                for r in rows
                if (r["operation"], r["order"]) == (op, order) and int(r["total_elements"]) == n
            ]
            if not found:
                cells.append("")
            elif len(found) == 1:
                cells.append(f"{found[0]:.2f}")
            else:
                cells.append(f"{geometric_mean(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        yield f"| {op}, {order} | {' | '.join(cells)} |"


def misses(rows: list[Row]) -> Iterable[str]:
    for r in rows:
        if float(r["speedup"]) < 0.95 * bound(r):
            names = ("operation", "order", "total_elements", "avg_segment_length", "width", "dtype")
            times = [f"{1e3 * float(r[name]):.1f}" for name in ("ours_median_ms", "framework_median_ms")]
            yield f"| {' | '.join([*(r[name] for name in names), *times, r['speedup'], str(bound(r))])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("--command", action="append", default=[], help="what wrote each file")
    options = parser.parse_args()
    print("# Benchmarks\n\nWritten by `python benchmarks/segment_ops/report.py`.")
    print(f"\n{machine()}; {datetime.date.today()}.")
    print(
        "\nTime of the fastest way to write the same thing with the framework's own operations, over ours, medians of"
        "\nalternating calls in one process: above 1, ours is faster. Where a cell stands for several (mean lengths,"
        "\nwidths, dtypes), it is their geometric mean, with the least and the most."
    )
    for path, command in zip(options.files, options.command, strict=True):
        with path.open() as stream:
            rows = list(csv.DictReader(stream))
        print(f"\n## `{command}`\n")
        print("\n".join(table(rows)))
        found = list(misses(rows))
        print(f"\n{len(found)} of {len(rows)} cells are more than 5 % below what is wanted of them:\n")
        if found:
            print("| operation | order | N | length | width | dtype | ours, us | theirs, us | speedup | wanted |")
            print("| --- |" + " --- |" * 9)
            print("\n".join(found))


if __name__ == "__main__":
    main()
