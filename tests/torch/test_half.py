# SPDX-License-Identifier: Apache-2.0
"""float16 and bfloat16: rounded once from float64 and counted in integers."""

import pytest
import torch
from oracles import OPS, positions
from torch_battery import (
    Case,
    derivatives,
    every_layout,
    make_index,
    over,
    random_cotangents,
    same_bits,
)

from segmentops.ops.table import OPERATIONS
from segmentops.torch import _cuda
from segmentops.torch import segment_ops as ops
from segmentops.torch._kernels import KERNELS

HALF = (torch.float16, torch.bfloat16)
LENGTHS = (3, 1, 0, 2, 70, 5)

every_case = over(HALF)
every_op = over(HALF, (torch.int32,), widths=1)
every_half = pytest.mark.parametrize("dtype", HALF, ids=str)


def rounded(x, dtype):
    """float64 to the nearest number of a half type, ties to even; torch's own conversion goes by way of float32."""
    digits, lowest = {torch.float16: (11, -13), torch.bfloat16: (8, -125)}[dtype]
    e = torch.frexp(x).exponent.clamp(min=lowest).double() - digits
    return (torch.round(x * 2**-e) * 2**e).to(dtype)


def oracle(case, inputs, idx, m):
    return case.oracle([a.double() for a in inputs], idx, m)[0]


@every_case
@every_layout
def test_values_are_the_nearest(case, lengths):
    idx, m = case.index(lengths), len(lengths)
    inputs = case.inputs(len(idx), m)
    out = case(*inputs, idx, m)
    assert out.dtype == case.dtype and out.is_contiguous()
    assert torch.equal(out, rounded(oracle(case, inputs, idx, m), case.dtype))


@every_op
@pytest.mark.parametrize("width", [1, 2, 16, 31, 34, 100, 128, 511, 512])
def test_wide_rows(case, width):
    width = (width, 3) if case.op.matrices else (width,)
    case = Case(case.op, width, case.dtype, case.index_dtype)
    idx = case.index(LENGTHS)
    inputs = case.inputs(len(idx), 6)
    assert torch.equal(case(*inputs, idx, 6), rounded(oracle(case, inputs, idx, 6), case.dtype))


@every_op
def test_derivatives_to_third_order(case):
    """Against the composition in float64, at the same half-precision numbers."""
    idx, m = case.index(LENGTHS), 6
    inputs = case.inputs(len(idx), m)
    cotangents = random_cotangents(case, len(idx), m, 3)
    found = derivatives(lambda *a: case(*a, idx, m), inputs, cotangents)
    wide = [[c.double() for c in order] for order in cotangents]
    expected = derivatives(lambda *a: case.composed(*a, idx, m), [a.double() for a in inputs], wide)
    for order, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == case.dtype and a.isfinite().all()
            bound = (1, 2, 4, 8)[order] * case.eps * (1 + b.abs().max().item())
            assert (a.double() - b).abs().max().item() <= bound, order


@every_op
def test_alone_and_in_a_batch(case):
    """Values and gradients, for any number of threads."""
    idx, m = case.index((5, 0, 300, 9000, 2)), 5
    inputs = case.inputs(len(idx), m)
    weights = case.weights(len(idx), m)
    start = 305

    def run(inputs, weights, idx, m):
        leaves = [a.detach().requires_grad_() for a in inputs]
        out = case(*leaves, idx, m)
        return [out.detach(), *torch.autograd.grad(out, leaves, weights)]

    def cut(array, value):
        return value[start : start + 9000] if array.kind == "element" else value[3:4]

    alone = run(
        [cut(a, v) for a, v in zip(case.op.args, inputs, strict=True)],
        cut(case.op.out, weights),
        torch.zeros(9000, dtype=torch.int32),
        1,
    )
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            batch = run(inputs, weights, idx, m)
            arrays = [case.op.out, *case.op.args]
            assert all(
                same_bits(cut(array, b).contiguous(), a) for array, a, b in zip(arrays, alone, batch, strict=True)
            )
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------ counters and by-products
@every_half
def test_means_of_many(dtype):
    n = 70_000
    for length in (512, 1024, n):
        alternating = (torch.arange(length) % 2).to(dtype)
        assert ops.segmented_mean(alternating, torch.zeros(length, dtype=torch.int32), 1).item() == 0.5
    idx = torch.zeros(n, dtype=torch.int32)
    ones = torch.ones(n, dtype=dtype, requires_grad=True)
    for function in (ops.segmented_mean, ops.segmented_rms_norm):
        out = function(ones, idx, 1)
        (grad,) = torch.autograd.grad(out, ones, torch.ones_like(out))
        assert out.item() == 1 and (grad == rounded(torch.tensor(1 / n).double(), dtype)).all() and grad[0] != 0


def test_logsumexp_of_many():
    n = 65_536  # more than float16 has numbers for
    x = torch.zeros(n, dtype=torch.float16, requires_grad=True)
    mean = ops.segmented_mean(x.exp(), torch.zeros(n, dtype=torch.int32), 1)
    out = mean.log() + torch.tensor(n).double().log().half()
    out.backward(torch.ones_like(out))
    assert abs(out.item() - 11.09) < 5e-3 and (x.grad == 1 / n).all()


@every_half
@pytest.mark.parametrize("size", [2e-5, 1.0, 3e4])
def test_rms_norm_over_the_range_of_the_type(dtype, size):
    """1 / (out count), kept for the backward, is a number of float32 here, but hardly of float16."""
    idx = make_index((4000, 3))
    x = (size * torch.linspace(0.5, 1.5, len(idx), dtype=torch.float64)).to(dtype).requires_grad_()
    out = ops.segmented_rms_norm(x, idx, 2)
    g = torch.full((2,), 1e3, dtype=dtype)
    (grad,) = torch.autograd.grad(out, x, g, create_graph=True)
    wide = x.detach().double()
    square = torch.zeros(2, dtype=torch.float64).index_add(0, idx.long(), wide * wide)
    count = torch.tensor([4000.0, 3.0], dtype=torch.float64)
    expected = wide * (1e3 / ((square / count).sqrt() * count))[idx.long()]
    assert torch.allclose(grad.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    (second,) = torch.autograd.grad(grad, x, torch.ones_like(grad))
    assert second.isfinite().all()


# ------------------------------------------------------------------ routes
def operands(name, lengths, dtype):
    """Operands of any operation: by-products of half-precision data are float32."""
    op = OPERATIONS[name]
    idx, m = make_index(lengths), len(lengths)
    dims = {"n": [len(idx)], "m": [m], "k": [3], "j": [2] if op.matrices else []}
    g = torch.Generator().manual_seed(0)
    tensors = []
    for o in op.operands:
        shape = [d for letter in (o.lead, *o.trail) for d in dims[letter]]
        kept = torch.float32 if o.by_product else dtype
        tensors.append(torch.randn(shape, generator=g).to(kept))
        if o.dtype:
            tensors[-1] = torch.from_numpy(positions(idx.numpy(), m, shape[1:]))
    return tensors, idx, m


@every_half
@pytest.mark.parametrize("name", OPERATIONS)
def test_fake_results_are_like_the_real_ones(name, dtype):
    tensors, idx, m = operands(name, (2, 0, 3, 4), dtype)
    target = getattr(torch.ops.segmentops, "segmented_" + name).default
    torch.library.opcheck(target, (*tensors, idx, m), test_utils=("test_schema", "test_faketensor"))


@every_half
@pytest.mark.parametrize("name", OPERATIONS)
def test_warps_kernels_give_the_same_bits(name, dtype):
    """The function of the CUDA key, on CPU tensors."""
    tensors, idx, m = operands(name, (200, 0, 5000, 7), dtype)
    ours, theirs = KERNELS[name](*tensors, idx, m), _cuda.kernel(name)(*tensors, idx, m)
    if isinstance(ours, torch.Tensor):
        ours, theirs = (ours,), (theirs,)
    for a, b in zip(ours, theirs, strict=True):
        assert same_bits(a, b) if a.is_floating_point() else torch.equal(a, b)


@every_op
def test_transforms(case):
    idx, m = case.index(LENGTHS), 6
    inputs = case.inputs(len(idx), m)
    other = case.inputs(len(idx), m, seed=7)
    both = [torch.stack(pair) for pair in zip(inputs, other, strict=True)]

    weights = case.weights(len(idx), m)

    def loss(*a):
        return (case(*a, idx, m) * weights).sum()

    gradient = torch.func.grad(loss, argnums=tuple(range(len(inputs))))
    batched = torch.func.vmap(gradient)(*both)
    for k, single in enumerate((gradient(*inputs), gradient(*other))):
        for a, b in zip(batched, single, strict=True):
            assert a.dtype == case.dtype
            torch.testing.assert_close(a[k], b, rtol=2 * case.eps, atol=2 * case.eps)
    _, moved = torch.func.jvp(lambda *a: case(*a, idx, m), tuple(inputs), tuple(other))
    wide = torch.func.jvp(
        lambda *a: case.composed(*a, idx, m), tuple(a.double() for a in inputs), tuple(a.double() for a in other)
    )[1]
    assert moved.dtype == case.dtype
    assert (moved.double() - wide).abs().max() <= 8 * case.eps * (1 + wide.abs().max())


@every_half
def test_compiled(dtype, fresh_dynamo):
    idx = make_index(LENGTHS)
    x = torch.randn(len(idx), 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()

    def step(x):
        return ops.segmented_mul(x, ops.segmented_rms_norm(x, idx, 6), idx, 6)

    compiled = torch.compile(step, fullgraph=True)
    weights = torch.randn(len(idx), 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for f in (step, compiled):
        out = f(x)
        results.append((out.detach(), *torch.autograd.grad(out, x, weights)))
    torch.testing.assert_close(results[1], results[0], rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)


@every_op
@pytest.mark.parametrize("other", HALF, ids=str)
def test_autocast_changes_nothing(case, other):
    idx, m = case.index(LENGTHS), 6
    leaves = case.inputs(len(idx), m, grad=True)
    expected = case(*leaves, idx, m)
    with torch.autocast("cpu", other):
        out = case(*leaves, idx, m)
        grads = torch.autograd.grad(out, leaves, case.weights(len(idx), m))
    assert same_bits(out.detach(), expected.detach()) and all(g.dtype == case.dtype for g in grads)


def test_every_public_op_is_covered():
    assert {case.op.name for case in every_op.args[1]} == {op.name for op in OPS}
