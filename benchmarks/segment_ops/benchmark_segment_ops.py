# SPDX-License-Identifier: Apache-2.0
"""Times every operation against the fastest way to write it with a framework's own operations, in one process.

    python benchmarks/segment_ops/benchmark_segment_ops.py --short            # about 60 cells
    python benchmarks/segment_ops/benchmark_segment_ops.py                    # all cells, under an hour
    python benchmarks/segment_ops/benchmark_segment_ops.py --framework jax    # under jax.jit, against jax.ops

A cell is an operation, an order (forward without gradient, forward + backward, that + second order), N, mean segment
length, width and dtype. All candidates of a cell take turns, so that a busy machine slows them alike; figures are
medians.
`speedup` is the framework's time over ours; `copy_ratio` is our time over that of a copy of as many bytes as
the larger of input and result; `segment_reduce_ratio` is torch.segment_reduce with ready-made lengths over ours.
With JAX, `mul_chain` is a row more: mul between element-wise operations, which XLA fuses with its own gather.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import warp as wp

wp.config.log_level = 30
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from cells import Cell, cells  # noqa: E402
from rich.progress import Progress  # noqa: E402

FRAMEWORKS = ("torch", "jax")  # each has a module jobs_<framework>: OPERATIONS, about(device), jobs(cell, device)
DTYPES = ("float32", "float64", "float16", "bfloat16")
COLUMNS = (
    "operation order dtype width total_elements num_segments avg_segment_length ours_median_ms framework_median_ms "
    "speedup framework copy_ratio segment_reduce_ratio"
).split()


def medians(jobs: list[Callable[[], object]], seconds: float, synchronize: Callable[[], None]) -> list[float]:
    """Median time of each job in ms; they take turns."""
    loops = []
    for run in jobs:
        run()
        start = time.perf_counter()
        run()
        synchronize()
        loops.append(max(1, min(1000, int(2e-4 / (time.perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in jobs]
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < end and len(times[0]) < 400:
        for k, run in enumerate(jobs):
            start = time.perf_counter()
            for _ in range(loops[k]):
                run()
            synchronize()
            times[k].append((time.perf_counter() - start) / loops[k])
    return [statistics.median(t) * 1e3 for t in times]


def measure(framework: Any, cell: Cell, device: str, seconds: float) -> dict[str, object]:
    jobs = framework.jobs(cell, device)
    every = [jobs.ours, jobs.copy, *jobs.rivals.values(), *([jobs.segment_reduce] if jobs.segment_reduce else [])]
    ours, copy, *rest = medians(every, seconds, jobs.synchronize)
    rivals = dict(zip(jobs.rivals, rest, strict=False))
    best = min(rivals, key=lambda name: rivals[name])
    return {
        "operation": cell.operation,
        "order": cell.order,
        "dtype": cell.dtype,
        "width": cell.width,
        "total_elements": cell.n,
        "num_segments": cell.segments,
        "avg_segment_length": cell.length,
        "ours_median_ms": f"{ours:.5g}",
        "framework_median_ms": f"{rivals[best]:.5g}",
        "speedup": f"{rivals[best] / ours:.3g}",
        "framework": best,
        "copy_ratio": f"{ours / copy:.3g}",
        "segment_reduce_ratio": f"{rest[-1] / ours:.3g}" if jobs.segment_reduce else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch")
    parser.add_argument("--short", action="store_true", help="about 60 cells instead of all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each cell")
    parser.add_argument("--only", default="", help="operations, separated by commas")
    parser.add_argument("--sizes", default="", help="values of N, separated by commas")
    parser.add_argument("--dtypes", default="float32,float64", help=f"some of {', '.join(DTYPES)}, separated by commas")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/benchmark.csv"))
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    framework = importlib.import_module(f"jobs_{options.framework}")
    wanted = list(cells(framework.OPERATIONS, options.short, dtypes))
    if options.only:
        wanted = [c for c in wanted if c.operation in options.only.split(",")]
    if options.sizes:
        wanted = [c for c in wanted if str(c.n) in options.sizes.split(",")]
    for x in (12, 100_000):  # compile and wake everything up
        for c in (Cell(op, "second", x, 10, 3, t) for op in framework.OPERATIONS for t in dtypes):
            measure(framework, c, options.device, 0.0)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with Progress() as progress, options.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for cell in progress.track(wanted, description="cells"):
            rows.append(measure(framework, cell, options.device, options.seconds))
            writer.writerow(rows[-1])
            stream.flush()
    print(f"{framework.about(options.device)}; {options.out}")
    for n in sorted({int(r["total_elements"]) for r in rows}):  # type: ignore[call-overload]
        found = [float(r["speedup"]) for r in rows if r["total_elements"] == n]
        mean, least = statistics.geometric_mean(found), min(found)
        print(f"N = {n:>9,}: {len(found):3} cells, speedup: geometric mean {mean:5.2f}, least {least:.2f}")


if __name__ == "__main__":
    main()
