# SPDX-License-Identifier: Apache-2.0
"""Times on a GPU against torch's own operations, in one process: eager calls and replays of a CUDA graph.

    PYTHONPATH=src python scripts/gpu_timing.py out/gpu_timing.csv [seconds]

For each operation, size and order of derivatives: microseconds of ours and of torch's, eager and replayed, and how many
times faster ours is. Sizes come in the order of their worth, and it stops when the seconds are used up.
"""

import csv
import itertools
import sys
import time

import torch

from segmentops.torch import segment_ops as ops

# (elements, segments); the first is that of published figures
SIZES = [(10_000, 1_000), (1_000, 100), (1_000_000, 10_000), (1_000_000, 100), (1_000_000, 500_000), (100_000, 1_000)]
ORDERS = ("forward", "backward", "second order")


def _add(x, idx, m):
    return x.new_zeros((m, *x.shape[1:])).index_add(0, idx, x)


def _counts(x, idx, m):
    """Of the same inputs that ours gets; bincount would wait for the device."""
    return _add(x.new_ones(idx.shape), idx, m).clamp(min=1)


# Operation: (its inputs: rows an element n or a segment m, trailing shape), torch's way
THEIRS: dict = {
    "sum": ([("n", (3,))], _add),
    "mean": ([("n", (3,))], lambda x, idx, m: _add(x, idx, m) / _counts(x, idx, m)[:, None]),
    "dot": ([("n", (3,)), ("n", (3,))], lambda x, y, idx, m: _add((x * y).sum(1), idx, m)),
    "rms_norm": ([("n", (3,))], lambda x, idx, m: (_add((x * x).sum(1), idx, m) / _counts(x, idx, m)).sqrt()),
    "mul": ([("n", (3,)), ("m", ())], lambda x, y, idx, m: x * y[idx][:, None]),
    "matvec": ([("n", (3,)), ("m", (3, 3))], lambda v, a, idx, m: torch.einsum("nk,nkj->nj", v, a[idx])),
}


def step(function, inputs, idx, m, order):
    """A closure that does the work of an order of derivatives."""
    leaves = [x.clone().requires_grad_(order != "forward") for x in inputs]
    with torch.no_grad():
        out = function(*leaves, idx, m)
    g = torch.randn_like(out)
    v = [torch.randn_like(x) for x in leaves]

    def run():
        out = function(*leaves, idx, m)
        if order == "forward":
            return (out,)
        grads = torch.autograd.grad(out, leaves, g, create_graph=order == "second order")
        if order == "backward":
            return grads
        live = [(a, b) for a, b in zip(grads, v, strict=True) if a.requires_grad]
        if not live:
            return grads
        return torch.autograd.grad([a for a, _ in live], leaves, [b for _, b in live], allow_unused=True)

    return run


def milliseconds(run, repeats):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def replayed(run):
    """The work as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def median_of_pairs(ours, theirs):
    """Alternated, so that a change of clocks hits both."""
    for run in (ours, theirs):
        milliseconds(run, 3)
    repeats = max(3, min(100, int(4 / max(milliseconds(theirs, 3), 1e-3))))
    pairs = [(milliseconds(ours, repeats), milliseconds(theirs, repeats)) for _ in range(5)]
    return (1e3 * sorted(times)[2] for times in zip(*pairs, strict=True))


def main(path, seconds):
    end = time.monotonic() + seconds
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["op", "order", "N", "M", "dtype", "how", "ours_us", "torch_us", "times_faster"])
        for (n, m), dtype, order, name in itertools.product(SIZES, (torch.float32,), ORDERS, THEIRS):
            if time.monotonic() > end:
                print("stopped: time is used up")
                break
            shapes, function = THEIRS[name]
            rows_of = {"n": n, "m": m}
            inputs = [torch.randn(rows_of[lead], *trail, device="cuda", dtype=dtype) for lead, trail in shapes]
            idx = torch.sort(torch.randint(m, (n,), device="cuda")).values
            narrow = idx.int()  # torch prefers int64, ours int32
            ours = step(getattr(ops, f"segmented_{name}"), inputs, narrow, m, order)
            theirs = step(function, inputs, idx, m, order)
            for how in ("eager", "graph"):
                try:
                    pair = (ours, theirs) if how == "eager" else (replayed(ours), replayed(theirs))
                except RuntimeError as error:
                    print(f"{name} {order} {n} {m}: no graph: {error}")
                    continue
                a, b = median_of_pairs(*pair)
                rows.writerow([name, order, n, m, str(dtype)[6:], how, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}"])
                print(f"{name:10s}{order:14s}{n:9d}{m:8d} {how:6s}{a:10.1f}{b:10.1f}{b / a:8.2f}x", flush=True)
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
