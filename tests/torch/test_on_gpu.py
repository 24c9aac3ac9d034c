# SPDX-License-Identifier: Apache-2.0
"""Operations on CUDA tensors, on a GPU: values, derivatives, graphs, streams, the idx check.

Nothing here needs Warp's CPU compiler. Bits, repeatability and batch invariance: `scripts/gpu_bits.py`.
"""

import pytest
import torch
from torch_battery import derivatives, every_case, over, random_cotangents, same_bits

from segmentops.torch.segment_ops import segmented_mul, segmented_rms_norm, segmented_sum

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

LENGTHS = (3, 0, 9, 70, 600, 1, 5000)


@every_case
def test_cuda_values(case):
    """Values and derivatives to the second order against the NumPy oracle and the composition."""
    idx = case.index(LENGTHS)
    n, m = len(idx), len(LENGTHS)
    inputs = case.inputs(n, m)
    value, scale = case.oracle(inputs, idx, m)
    cotangents = random_cotangents(case, n, m, 2)
    found = derivatives(
        lambda *a: case(*a, idx.cuda(), m), [a.cuda() for a in inputs], [[c.cuda() for c in o] for o in cotangents]
    )
    assert ((found[0][0].cpu().double() - value).abs() <= 4 * case.eps * scale).all()
    wide = [[t.double() for t in order] for order in cotangents]
    expected = derivatives(lambda *a: case.composed(*a, idx, m), [a.double() for a in inputs], wide)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            tolerance = 2e-4 if case.dtype is torch.float32 else 1e-9
            torch.testing.assert_close(a.cpu().double(), b, rtol=tolerance, atol=tolerance * (1 + b.abs().max().item()))


first_width = over(index_dtypes=(torch.int32,), widths=1)


def leaves_of(x):
    return [t.detach().clone().requires_grad_() for t in x]


@first_width
def test_cuda_graph_of_forward_and_backward(case):
    """A captured step, replayed on other data, gives what an eager step gives."""
    idx = case.index(LENGTHS).cuda()
    n, m = len(idx), len(LENGTHS)
    inputs = leaves_of([a.cuda() for a in case.inputs(n, m)])
    weights = case.weights(n, m).cuda()

    def step(leaves):
        out = case(*leaves, idx, m)
        return (out, *torch.autograd.grad(out, leaves, weights))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(inputs)
    for seed in (5, 6):
        fresh = [a.cuda() for a in case.inputs(n, m, seed)]
        with torch.no_grad():
            for a, b in zip(inputs, fresh, strict=True):
                a.copy_(b)
        graph.replay()
        torch.cuda.synchronize()
        expected = step(leaves_of(fresh))
        assert all(same_bits(a.detach().cpu(), b.detach().cpu()) for a, b in zip(captured, expected, strict=True))


def test_cuda_capture_looks_at_no_idx():
    x, idx = torch.ones(1000, 3, device="cuda"), torch.arange(1000, device="cuda") // 10
    segmented_sum(x, idx, 100)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = segmented_sum(x, idx.clone(), 100)  # a new one: looking would wait, which a capture forbids
    graph.replay()
    assert (out == 10).all()


def test_cuda_index_is_checked():
    x = torch.ones(1000, device="cuda")
    idx = torch.arange(1000, device="cuda") // 10
    for bad, word in ((idx.flip(0), "sorted"), (idx - 1, "negative"), (idx + 1, "range")):
        with pytest.raises(ValueError, match=word):
            segmented_sum(x, bad, 100)
    torch.cuda.synchronize()
    segmented_sum(x, idx, 100)
    torch.cuda.set_sync_debug_mode("error")  # the verdict is known
    try:
        segmented_sum(x, idx, 100)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_cuda_streams():
    """Work goes to the current stream: after its earlier work, before its later work."""
    n = 4_000_000
    idx = torch.arange(n, device="cuda", dtype=torch.int32) // 1000
    m = n // 1000
    segmented_sum(torch.ones(n, device="cuda"), idx, m)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x = torch.zeros(n, device="cuda")
        for _ in range(20):
            x = x + 1  # still to be done when the launches are issued
        out = segmented_mul(x, segmented_sum(x, idx, m), idx, m) * 2
    stream.synchronize()
    assert (out == 20 * 20_000 * 2).all()


def test_cuda_deterministic_mode():
    x = torch.randn(10_000, 3, device="cuda", requires_grad=True)
    idx = torch.arange(10_000, device="cuda") // 7
    torch.use_deterministic_algorithms(True)
    try:
        value = segmented_rms_norm(x, idx, 1429).sum() + segmented_sum(x, idx, 1429).sum()
        (g,) = torch.autograd.grad(value, x, create_graph=True)
        torch.autograd.grad(g.square().sum(), x)
    finally:
        torch.use_deterministic_algorithms(False)


def test_cuda_compiled_and_reduce_overhead():
    def loss(x):
        return segmented_sum(x * x, idx, 100).sum() + segmented_rms_norm(x, idx, 100).sum()

    idx = torch.arange(1000, device="cuda") // 10
    x = torch.randn(1000, 3, device="cuda", dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(x), x)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(loss, fullgraph=True, mode=mode)
        for _ in range(4):
            (g,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(g, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_cuda_second_device():
    x, idx = torch.ones(1000, device="cuda:1"), torch.arange(1000, device="cuda:1") // 10
    assert (segmented_sum(x, idx, 100) == 10).all()
    assert torch.cuda.current_device() == 0
