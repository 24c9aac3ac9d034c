# SPDX-License-Identifier: Apache-2.0
"""What a call costs where the arithmetic costs nothing: 12 elements in 3 segments, PyTorch on the CPU.

    python benchmarks/segment_ops/cheap_calls.py            # prints the tables
    python benchmarks/segment_ops/cheap_calls.py --write    # and puts them into docs/benchmarks.md

CPU time of this process, one thread; the least of several loops, all rows in turn.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import time
from collections.abc import Callable

import torch

from segmentops import native
from segmentops.torch import _kernels
from segmentops.torch.segment_ops import segmented_mul, segmented_sum

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
REGION = re.compile(r"(<!-- cheap calls -->\n).*?(<!-- end -->)", re.DOTALL)
LOOP, TURNS = 2_000, 40


class Nothing(torch.autograd.Function):
    """The least that an autograd Function written in Python can do."""

    @staticmethod
    def forward(ctx, x, idx, m):
        ctx.save_for_backward(idx)
        return x.new_empty(m)

    @staticmethod
    def backward(ctx, g):
        (idx,) = ctx.saved_tensors
        return g.new_empty(idx.shape), None, None


def microseconds(rows: dict[str, Callable[[], object]]) -> dict[str, float]:
    for call in rows.values():
        call()
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(TURNS):
        for name, call in rows.items():
            start = time.process_time_ns()
            for _ in range(LOOP):
                call()
            best[name] = min(best[name], (time.process_time_ns() - start) / LOOP / 1000)
    return best


def table(title: str, rows: dict[str, float]) -> str:
    lines = [f"| {title} | us |", "| --- | ---: |", *(f"| {name} | {value:.2f} |" for name, value in rows.items())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(12), torch.randn(3)
    idx = torch.tensor([0] * 4 + [1] * 4 + [2] * 4, dtype=torch.int32)
    wide = idx.long()
    gx, gy = x.clone().requires_grad_(), y.clone().requires_grad_()
    g3, g12 = torch.randn(3), torch.randn(12)
    out = torch.empty(3)
    kernel, engine = _kernels.KERNELS["sum"], native.load().sum_f32
    addresses = (x.data_ptr(), idx.data_ptr(), out.data_ptr())
    nothing = Nothing.apply

    def grad(out, inputs, g):
        return torch.autograd.grad(out, inputs, g)

    calls = microseconds(
        {
            "sum, forward": lambda: segmented_sum(x, idx, 3),
            "torch: zeros(3).index_add_": lambda: torch.zeros(3).index_add_(0, wide, x),
            "sum, forward with grad": lambda: segmented_sum(gx, idx, 3),
            "torch: the same": lambda: torch.zeros(3).index_add_(0, wide, gx),
            "sum, forward + backward": lambda: grad(segmented_sum(gx, idx, 3), gx, g3),
            "torch: the same ": lambda: grad(torch.zeros(3).index_add_(0, wide, gx), gx, g3),
            "mul, forward": lambda: segmented_mul(x, y, idx, 3),
            "torch: x * y[idx]": lambda: x * y.index_select(0, wide),
            "mul, forward with grad": lambda: segmented_mul(gx, gy, idx, 3),
            "torch: the same  ": lambda: gx * gy.index_select(0, wide),
            "mul, forward + backward": lambda: grad(segmented_mul(gx, gy, idx, 3), (gx, gy), g12),
            "torch: the same   ": lambda: grad(gx * gy.index_select(0, wide), (gx, gy), g12),
        }
    )
    parts = microseconds(
        {
            "an empty Python function": lambda: None,
            "the engine: 12 elements summed, as a built-in with addresses": lambda: engine(*addresses, 12, 3, 1, 2),
            "allocating the result: x.new_empty(3)": lambda: x.new_empty(3),
            "the operation below autograd: tensors read, result allocated, engine": lambda: kernel(x, idx, 3),
            "the public function: all questions, then the same": lambda: segmented_sum(x, idx, 3),
            "an autograd Function in Python that only allocates, forward": lambda: nothing(gx, idx, 3),
            "the same, forward + backward": lambda: grad(nothing(gx, idx, 3), gx, g3),
        }
    )
    text = table("call", calls) + "\n\n" + table("where the time goes", parts) + "\n"
    text = f"PyTorch {torch.__version__}, one thread.\n\n{text}"
    print(text)
    if options.write:
        page = PAGE.read_text()
        PAGE.write_text(REGION.sub(lambda m: f"{m[1]}\n{text}\n{m[2]}", page))


if __name__ == "__main__":
    main()
