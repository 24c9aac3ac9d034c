# SPDX-License-Identifier: Apache-2.0
"""Times every operation against the fastest way to write it with a framework's own operations, in one process.

    python benchmarks/segment_ops/benchmark_segment_ops.py --short                  # about 60 cells, minutes
    python benchmarks/segment_ops/benchmark_segment_ops.py                          # all cells, under an hour
    python benchmarks/segment_ops/benchmark_segment_ops.py --skewed --plot          # uneven lengths, odd widths
    python benchmarks/segment_ops/benchmark_segment_ops.py --framework jax          # under jax.jit, against jax.ops
    python benchmarks/segment_ops/benchmark_segment_ops.py --framework warp         # launchers, and their graphs
    python benchmarks/segment_ops/benchmark_segment_ops.py --minutes 20 --resume    # a part; again for the next one

A cell is an operation, an order (forward without gradient, forward + backward, that + second order), N, number of
segments, how their lengths are distributed, width and dtype. All candidates of a cell take turns, so that a busy
machine slows them alike; figures are medians. Ratios:

speedup                   the fastest rival's time over ours; `rival` names it
copy_ratio                our time over that of a copy of as many bytes as the larger of inputs and result
graph_speedup             with Warp: time of the launchers, eager, over that of their replay as a graph
segment_reduce_speedup    the time of torch.segment_reduce with ready-made lengths over ours
torch_geometric_speedup   the time of torch_geometric's scatter over ours, where it is installed
numpy_groupies_speedup    the time of its aggregate over ours, where it is installed

With JAX, `mul_chain` is a row more: mul between element-wise operations, which XLA fuses with its own gather.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib
import os
import pathlib
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import warp as wp

wp.config.log_level = 30

import timing  # noqa: E402
from cells import Cell, Row, cells, key  # noqa: E402
from rich.progress import Progress  # noqa: E402

# Each has a module jobs_<framework>: OPERATIONS, about(device), can(cell), clock(device), jobs(cell, device).
FRAMEWORKS = ("torch", "jax", "warp")
OTHERS = ("segment_reduce", "torch_geometric", "numpy_groupies")
COLUMNS = (
    *"operation dtype total_elements num_segments avg_segment_length ours_median_ms framework_median_ms".split(),
    *"speedup copy_ratio warp_graph_median_ms graph_speedup".split(),
    *"order width distribution framework device rival".split(),
    *(f"{name}_speedup" for name in OTHERS),
    *"command machine".split(),
)


def measure(framework: Any, cell: Cell, device: str, seconds: float) -> Row:
    """The row of a cell, but for what is the same in all rows."""
    jobs, clock = framework.jobs(cell, device), framework.clock(device)
    named = {"ours": jobs.ours, "copy": jobs.copy} | jobs.others | timing.hopeful(jobs.rivals, clock)
    found = timing.medians(named, seconds, clock)
    ours = found["ours"]
    rival = min(jobs.rivals.keys() & found.keys(), key=lambda name: found[name])
    row = cell.row() | {
        "ours_median_ms": f"{ours:.5g}",
        "framework_median_ms": f"{found[rival]:.5g}",
        "speedup": f"{found[rival] / ours:.3g}",
        "copy_ratio": f"{ours / found['copy']:.3g}",
        "rival": rival,
    }
    row |= {f"{name}_speedup": f"{found[name] / ours:.3g}" for name in jobs.others}
    if framework.__name__ == "jobs_warp":
        eager, replay = timing._bench_cuda_graph(jobs.ours, device, seconds / 2)
        row |= {"warp_graph_median_ms": f"{replay:.5g}", "graph_speedup": f"{eager / replay:.3g}"}
    return row


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    when = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    return f"{when}, {cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    which = parser.add_mutually_exclusive_group()
    for name in ("short", "skewed"):
        which.add_argument(f"--{name}", dest="set", action="store_const", const=name, default="full")
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each cell")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after so many")
    parser.add_argument("--resume", action="store_true", help="keep the cells that the CSV has")
    parser.add_argument("--only", default="", help="operations, separated by commas")
    parser.add_argument("--sizes", default="", help="values of N, separated by commas")
    parser.add_argument("--dtypes", default="float32,float64", help="separated by commas")
    parser.add_argument("--cpu-flags", help='of the engine; --cpu-flags="-target-cpu x86-64-v3" is AVX2')
    parser.add_argument("--out", type=pathlib.Path, help="default: out/<framework>_<device>_<set>.csv")
    parser.add_argument("--plot", action="store_true", help="a heat map beside the CSV")
    options = parser.parse_args(argv)
    options.out = options.out or pathlib.Path(f"out/{options.framework}_{options.device}_{options.set}.csv")
    return options


def read(path: pathlib.Path) -> list[Row]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    if options.cpu_flags:
        wp.config.cpu_compiler_flags = options.cpu_flags
    dtypes, device = options.dtypes.split(","), options.device
    framework = importlib.import_module(f"jobs_{options.framework}")
    everywhere = {
        "framework": options.framework,
        "device": device,
        "command": shlex.join([pathlib.Path(__file__).name, *(sys.argv[1:] if argv is None else argv)]),
        "machine": f"{machine()}, {framework.about(device)}",
    }
    wanted = [c for c in cells(options.set, framework.OPERATIONS, dtypes) if framework.can(c)]
    for names, of in ((options.only, "operation"), (options.sizes, "n")):
        wanted = [c for c in wanted if not names or str(getattr(c, of)) in names.split(",")]
    rows = read(options.out) if options.resume and options.out.exists() else []
    if rows and tuple(rows[0]) != COLUMNS:
        sys.exit(f"{options.out} has other columns: it cannot be resumed")
    known = {key(row) for row in rows}
    todo = [c for c in wanted if key(c.row() | everywhere) not in known]

    end = time.monotonic() + 60 * options.minutes
    for kind in dict.fromkeys((c.operation, c.order, c.dtype) for c in todo):  # compile and wake everything up
        first = next(c for c in todo if (c.operation, c.order, c.dtype) == kind)
        measure(framework, Cell(*kind, first.width, 12, 2), device, 0.0)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with Progress() as progress, options.out.open("a" if rows else "w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        if not rows:
            writer.writeheader()
        for cell in progress.track(todo, description="cells"):
            if time.monotonic() > end:
                break
            rows.append(measure(framework, cell, device, options.seconds) | everywhere)
            writer.writerow(rows[-1])
            stream.flush()
    print(f"{everywhere['machine']}\n{options.out}: {len(rows)} cells; of this command {len(wanted)}")
    for n in sorted({int(r["total_elements"]) for r in rows}):
        found = [float(r["speedup"]) for r in rows if int(r["total_elements"]) == n]
        mean, least = statistics.geometric_mean(found), min(found)
        print(f"N = {n:>9,}: {len(found):3} cells, speedup: geometric mean {mean:5.2f}, least {least:.2f}")
    if options.plot and rows:
        from plot import heat_map

        print(heat_map(rows, options.out.with_suffix(".png")))


if __name__ == "__main__":
    main()
