# SPDX-License-Identifier: Apache-2.0
"""Tensors with strides: the bits of contiguous ones, and no copy of a whole one.

The engine copies pieces of 8192 scalars, or a row that has more: the sizes here lie on both sides of that.
"""

import os
import sys

import pytest
import torch
from native.process import python
from oracles import OPS
from pages import needs_linux
from torch_battery import DTYPES, Case, derivatives, make_index, random_cotangents, same_bits

HALF = (torch.float16, torch.bfloat16)
LENGTHS = {
    "long": (700, 0, 3, 1, 9000, 2, 70),
    "short": (3, 1, 0, 2, 5) * 500,
    "few": (3, 70, 0, 130, 1),
}
SIZES = [
    *[("long", width) for width in ((), (3,), (4,), (2, 3))],
    *[("short", width) for width in ((), (3,), (5,), (2, 2))],
    *[("few", width) for width in ((64,), (1300,), (6, 7), (9000,), (2, 4100))],
]


def transposed(a):
    return a.permute(*reversed(range(a.dim()))).contiguous().permute(*reversed(range(a.dim())))


def spaced(a):
    """Every other one of all dimensions: no single stride goes through a row of two."""
    wide = torch.full([2 * d for d in a.shape], 777.0, dtype=a.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in a.shape)]
    return view.copy_(a)


def same_row(a):
    return a[:1].expand(a.shape)


def same_columns(a):
    return a if a.dim() == 1 else a.reshape(len(a), -1)[:, :1].reshape(len(a), *[1] * (a.dim() - 1)).expand(a.shape)


def one_number(a):
    return a.new_tensor(0.7).expand(a.shape)


def overlapping(a):
    """Each row begins one scalar after the row before it."""
    scalars = a.reshape(-1)
    return scalars.as_strided(a.shape, (1, *a.stride()[1:])) if a.numel() else a


LAYOUTS = (transposed, spaced, same_row, same_columns, one_number, overlapping)


CASES = [
    (Case(op, width, dtype, torch.int32), label)
    for op in OPS
    for k, (label, width) in enumerate(SIZES)
    for dtype in (*DTYPES, *HALF)
    if not op.matrices or (len(width) == 2 and width[1] < 4000)  # matrices
    if dtype in DTYPES or k % 3 == 2 or op.matrices
]


@pytest.mark.parametrize(("case", "label"), CASES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_bits_of_contiguous_tensors(case, label, layout, threads):
    """Inputs and cotangents, all of them or one, to the second order, on one thread and on several."""
    lengths = LENGTHS[label]
    idx, m = make_index(lengths), len(lengths)
    inputs = case.inputs(len(idx), m)
    orders = random_cotangents(case, len(idx), m, 2)

    def results(change, graph):
        changed = [[change(c) for c in order] for order in orders]
        return derivatives(lambda *a: case(*a, idx, m), [change(a) for a in inputs], changed, graph)

    for graph in (False, True)[: 1 + (layout is spaced)]:
        threads(1)
        expected = results(lambda a: layout(a).contiguous(), graph)
        for count in (1, 3):
            threads(count)
            for order, (found, right) in enumerate(zip(results(layout, graph), expected, strict=True)):
                assert all(map(same_bits, found, right)), (order, count, graph)


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.short)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_one_operand_with_strides(op, layout):
    case = Case(op, (5, 7) if op.matrices else (5,), torch.float32, torch.int64)
    idx, m = make_index(LENGTHS["short"], torch.int64), len(LENGTHS["short"])
    inputs = case.inputs(len(idx), m)
    for k in range(len(inputs)):
        one = [layout(a) if i == k else a for i, a in enumerate(inputs)]
        assert same_bits(case(*one, idx, m), case(*[a.contiguous() for a in one], idx, m))


@needs_linux
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_no_copy_of_a_whole_tensor(dtype):
    """Value, gradients and gradients of those: memory at the peak beyond inputs and results, in MB.

    A copy of the operand is 12 or 24 MB. In a process of its own: what others have freed could be used again.
    """
    lines = python(f"""
    import gc
    import torch
    from oracles import OPS
    from segmentops.torch import segment_ops
    N, M, K = 100_000, 400, 64
    dtype = torch.{dtype}
    torch.set_num_threads(2)
    index = torch.arange(N, dtype=torch.int32) // (N // M)
    layouts = dict(
        expanded=lambda n: torch.rand(n, 1, dtype=dtype).expand(-1, K),
        transposed=lambda n: torch.rand(K, n, dtype=dtype).t(),
        columns=lambda n: torch.rand(n, K + 1, dtype=dtype)[:, 1:],
        row=lambda n: torch.rand(K, dtype=dtype).expand(n, K))
    one = torch.ones((), dtype=dtype)
    def memory(key):
        line = next(line for line in open("/proc/self/status") if line.startswith(key))
        return int(line.split()[1]) / 1024
    def added(*args):
        gc.collect()
        before = memory("VmRSS")
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # the peak is counted anew
        found = args[0](*args[1:], allow_unused=True) if args[0] is torch.autograd.grad else [args[0](*args[1:])]
        results = sum(a.untyped_storage().nbytes() for a in found if a is not None) / 2**20
        return memory("VmHWM") - before - results
    for n in (10, N):  # the first calls compile
        idx = index[:n]
        for op in OPS:
            width = (K, 8) if op.matrices else (K,)
            for name, layout in layouts.items():
                inputs = []
                for a in op.args:
                    shape = a.shape(n, M, width)
                    made = layout(n) if a.kind == "element" else torch.rand(shape[:1], dtype=dtype)
                    made = made if a.kind == "element" else made.view(-1, *[1] * (len(shape) - 1)).expand(shape)
                    inputs.append(made.requires_grad_())
                call = getattr(segment_ops, op.name)
                run = lambda: call(*inputs, idx, M)
                with torch.no_grad():
                    sizes = [added(run)]
                total = run().sum()  # its cotangent is one number, expanded
                sizes.append(added(torch.autograd.grad, total, inputs))
                out = run()
                grads = torch.autograd.grad(out, inputs, one.expand(out.shape), create_graph=True)
                live = [g for g in grads if g.requires_grad]
                if live:
                    sizes.append(added(torch.autograd.grad, live, inputs, [one.expand(g.shape) for g in live]))
                if n == N:
                    print(op.short, name, max(sizes))
    """, PYTHONPATH=os.pathsep.join(sys.path))  # fmt: skip
    found = [line.split() for line in lines]
    assert len(found) == 4 * len(OPS)
    assert not [line for line in found if float(line[-1]) > 6]
