"""Times every operation against the fastest way to write it with PyTorch's own operations, in one process.

    python benchmarks/segment_ops/benchmark_segment_ops.py --short         # about 60 cells
    python benchmarks/segment_ops/benchmark_segment_ops.py                 # all cells, under an hour

A cell is an operation, an order (forward without gradient, forward + backward, that + second order), N, mean segment
length, width and dtype. All candidates of a cell take turns, so that a busy machine slows them alike; figures are
medians.
`speedup` is the framework's time over ours; `copy_ratio` is our time over that of a copy (`clone`) of as many bytes as
the larger of input and result; `segment_reduce_ratio` is torch.segment_reduce with ready-made lengths over ours.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import warp as wp

wp.config.log_level = 30
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from rich.progress import Progress  # noqa: E402
from rivals_torch import RIVALS  # noqa: E402

from nvalchemiops.torch import segment_ops as ours  # noqa: E402

ORDERS = ("forward", "backward", "second")
SIZES = (12, 1_000, 10_000, 100_000, 1_000_000)
LENGTHS = (2, 10, 100, 10_000)
DTYPES = {"float32": torch.float32, "float64": torch.float64}
COLUMNS = (
    "operation order dtype width total_elements num_segments avg_segment_length ours_median_ms framework_median_ms "
    "speedup framework copy_ratio segment_reduce_ratio"
).split()


@dataclass(frozen=True)
class Cell:
    operation: str
    order: str
    n: int
    length: int
    width: int
    dtype: str


def cells(short: bool) -> Iterator[Cell]:
    """All cells, or about 60 of them."""
    if short:
        for op, order, n in itertools.product(RIVALS, ORDERS, (12, 10_000, 1_000_000)):
            yield Cell(op, order, n, 10, 3 if op != "sum" or order != "forward" else 1, "float32")
        return
    for op, order, n, length, width, dtype in itertools.product(RIVALS, ORDERS, SIZES, LENGTHS, (1, 3), DTYPES):
        if length <= n and not (op == "matvec" and width == 1) and not (op == "max_norm" and width == 1):
            yield Cell(op, order, n, length, width, dtype)


def tensors(cell: Cell, device: str) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    g = torch.Generator().manual_seed(0)
    m = max(1, round(cell.n / cell.length))
    idx = torch.sort(torch.randint(0, m, (cell.n,), generator=g)).values
    dtype = DTYPES[cell.dtype]
    rows = (cell.n,) if cell.width == 1 else (cell.n, cell.width)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype).to(device)

    inputs = [randn(*rows)]
    if cell.operation == "dot":
        inputs.append(randn(*rows))
    elif cell.operation == "mul":
        inputs.append(randn(m))
    elif cell.operation == "matvec":
        inputs.append(randn(m, cell.width, cell.width))
    return inputs, idx.to(device), m


def job(function: Callable[..., torch.Tensor], order: str, inputs: list[torch.Tensor], idx: torch.Tensor, m: int):
    """A call without arguments that does what the order says."""
    if order == "forward":

        def forward() -> object:
            with torch.no_grad():
                return function(*inputs, idx, m)

        return forward
    leaves = [x.clone().requires_grad_() for x in inputs]
    cotangent = torch.randn_like(function(*leaves, idx, m))
    if order == "backward":
        return lambda: torch.autograd.grad(function(*leaves, idx, m), leaves, cotangent)
    moving = [torch.randn_like(x) for x in leaves]
    cotangent.requires_grad_()

    def second() -> object:
        first = torch.autograd.grad(function(*leaves, idx, m), leaves, cotangent, create_graph=True)
        return torch.autograd.grad(first, [*leaves, cotangent], moving, allow_unused=True)

    return second


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


def measure(cell: Cell, device: str, seconds: float) -> dict[str, object]:
    inputs, idx, m = tensors(cell, device)
    narrow = idx.int()
    function = getattr(ours, "segmented_" + cell.operation)
    jobs = [job(function, cell.order, inputs, narrow, m)]
    jobs += [job(rival, cell.order, inputs, idx, m) for rival in RIVALS[cell.operation]]
    result = function(*inputs, narrow, m)
    largest = max([*inputs, result], key=torch.numel)
    jobs.append(lambda: largest.clone())
    reduce = cell.operation in ("sum", "mean") and cell.order == "forward"
    if reduce:
        lengths = torch.bincount(idx, minlength=m)
        jobs.append(lambda: torch.segment_reduce(inputs[0], cell.operation, lengths=lengths, unsafe=True))
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    ms = medians(jobs, seconds, synchronize)
    rivals = ms[1 : 1 + len(RIVALS[cell.operation])]
    best = min(rivals)
    return {
        "operation": cell.operation,
        "order": cell.order,
        "dtype": cell.dtype,
        "width": cell.width,
        "total_elements": cell.n,
        "num_segments": m,
        "avg_segment_length": cell.length,
        "ours_median_ms": f"{ms[0]:.5g}",
        "framework_median_ms": f"{best:.5g}",
        "speedup": f"{best / ms[0]:.3g}",
        "framework": RIVALS[cell.operation][rivals.index(best)].__name__,
        "copy_ratio": f"{ms[0] / ms[1 + len(rivals)]:.3g}",
        "segment_reduce_ratio": f"{ms[-1] / ms[0]:.3g}" if reduce else "",
    }


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="about 60 cells instead of all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each cell")
    parser.add_argument("--only", default="", help="operations, separated by commas")
    parser.add_argument("--sizes", default="", help="values of N, separated by commas")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/benchmark.csv"))
    options = parser.parse_args()
    wanted = list(cells(options.short))
    if options.only:
        wanted = [c for c in wanted if c.operation in options.only.split(",")]
    if options.sizes:
        wanted = [c for c in wanted if str(c.n) in options.sizes.split(",")]
    for x in (12, 100_000):  # compile and wake everything up
        for c in (Cell(op, "second", x, 10, 3, t) for op in RIVALS for t in DTYPES):
            measure(c, options.device, 0.0)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with Progress() as progress, options.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for cell in progress.track(wanted, description="cells"):
            rows.append(measure(cell, options.device, options.seconds))
            writer.writerow(rows[-1])
            stream.flush()
    print(f"{options.device}, torch {torch.__version__}, {torch.get_num_threads()} threads; {options.out}")
    for n in sorted({int(r["total_elements"]) for r in rows}):  # type: ignore[call-overload]
        found = [float(r["speedup"]) for r in rows if r["total_elements"] == n]  # type: ignore[arg-type]
        mean, least = geometric_mean(found), min(found)
        print(f"N = {n:>9,}: {len(found):3} cells, speedup: geometric mean {mean:5.2f}, least {least:.2f}")


if __name__ == "__main__":
    main()
