# SPDX-License-Identifier: Apache-2.0
"""Small inputs behind real reports about segment, scatter and custom-op libraries, with the right answers.

The numbers are those of the list of cases from the field. Each stands for a kind of fault; the kinds are tested for
every op elsewhere, too: here they are in one place, with inputs that can be read. Speed is for the benchmark.
"""

import math

import pytest
import torch
from torch.autograd import forward_ad as fw
from torch.func import hessian, jacfwd, jacrev, jvp, vmap
from torch_battery import (
    DTYPES,
    assert_close,
    derivatives,
    every_op,
    every_op_and_dtype,
    make_index,
    over,
    random_cotangents,
    same_bits,
    slots,
)

from segmentops.torch import segment_ops
from segmentops.torch.segment_ops import segmented_mean, segmented_sum

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def index(*numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype)


def leaves(tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


# ------------------------------------------------------------------ 1: an empty middle segment, forward mode
@every_dtype
def test_1_tangent_of_an_empty_segment(dtype):
    idx = index(0, 0, 2, 2, 2)
    x, t = torch.arange(1.0, 6.0, dtype=dtype), torch.tensor([1.0, 3.0, 1.0, 1.0, 4.0], dtype=dtype)
    with fw.dual_level():
        out, tangent = fw.unpack_dual(segmented_mean(fw.make_dual(x, t), idx, 3))
        assert out.tolist() == [1.5, 0.0, 4.0] and tangent.tolist() == [2.0, 0.0, 2.0]
    out, tangent = jvp(lambda x: segmented_mean(x, idx, 3), (x,), (t,))
    assert out.tolist() == [1.5, 0.0, 4.0] and tangent.tolist() == [2.0, 0.0, 2.0]


@every_op_and_dtype
def test_1_all_derivatives_of_an_empty_segment(case):
    idx, m = index(0, 0, 2, 2, 2), 3
    inputs = case.inputs(5, m)
    tangents = tuple(case.inputs(5, m, seed=1))
    out, tangent = jvp(lambda *a: case(*a, idx, m), tuple(inputs), tangents)
    assert torch.isfinite(tangent).all()
    if case.op.reduces:
        assert (tangent[1] == 0).all() and (out[1] == 0).all()
    for order in (2, 3):
        found = derivatives(lambda *a: case(*a, idx, m), inputs, random_cotangents(case, 5, m, order))
        assert all(torch.isfinite(t).all() for tensors in found for t in tensors)
    w = case.weights(5, m)
    for transform in (jacfwd, jacrev, hessian, lambda f: jacfwd(hessian(f))):
        result = transform(lambda x: (case(x, *inputs[1:], idx, m).sin() * w).sum())(inputs[0])
        assert torch.isfinite(result).all() and (result != 0).any()


# ------------------------------------------------------------------ 2: one group poisons another
@every_dtype
def test_2_softmax(dtype):
    """Segment 1 is [1, -1]; segment 2 holds an infinity."""
    values, idx = torch.tensor([1.0, -1.0, -float("inf"), 50.0], dtype=dtype), index(1, 1, 2, 2)
    weights = values.exp()
    total = segmented_sum(weights, idx, 3)
    softmax = segment_ops.segmented_mul(weights, 1 / total, idx, 3)
    expected = torch.tensor([0.880797, 0.119203, 0.0, 1.0], dtype=dtype)
    torch.testing.assert_close(softmax, expected, rtol=1e-5, atol=1e-6)
    assert (total[0] == 0) and torch.isfinite(softmax).all()


@over((*DTYPES, torch.float16, torch.bfloat16), (torch.int32,), widths=1)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_2_no_bit_of_another_segment_changes(case, poison):
    """Of values, first and second derivatives, whatever one segment holds."""
    idx, m, sick = make_index((5, 70, 3, 0, 300, 9)), 6, 1
    inputs = case.inputs(len(idx), m)
    poisoned = [a.clone() for a in inputs]
    for a, array in zip(poisoned, case.op.args, strict=True):
        a[[5, 8, 74] if array.kind == "element" else sick] = poison
    cotangents = random_cotangents(case, len(idx), m, 2)
    plain, other = (derivatives(lambda *a: case(*a, idx, m), x, cotangents) for x in (inputs, poisoned))
    if not case.op.selects or math.isnan(poison):
        assert not other[0][0][5 if case.op.out.kind == "element" else sick].isfinite().any()
    for order, arrays in enumerate(slots(case.op, 3)):
        for a, b, array in zip(plain[order], other[order], arrays, strict=True):
            well = idx != sick if array.kind == "element" else torch.arange(m) != sick
            assert same_bits(a[well], b[well]), (order, array.name)


# ------------------------------------------------------------------ 3: low-precision counters: test_half.py


# ------------------------------------------------------------------ 5: gradients in any layout
@every_op_and_dtype
def test_5_strided_gradients(case):
    """Halves of a concatenation, every second column of it: views that are not contiguous."""
    idx, m = index(0, 0, 1, 3, 3, 3), 4
    both = [leaves(case.inputs(6, m, seed)) for seed in (0, 1)]
    outs = [case(*inputs, idx, m) for inputs in both]
    columns = [out.reshape(len(out), -1) for out in outs]
    w = case.random([case.op.out], 2 * len(outs[0]), 2 * len(outs[0]), 5)[0].reshape(len(outs[0]), -1)
    mixed = torch.cat(columns, dim=1)[:, ::2]
    (mixed * w[:, : mixed.shape[1]]).sum().backward()
    plain = [leaves(case.inputs(6, m, seed)) for seed in (0, 1)]
    full = torch.zeros(len(outs[0]), 2 * columns[0].shape[1], dtype=case.dtype)
    full[:, ::2] = w[:, : mixed.shape[1]]
    for inputs, half, others, out in zip(plain, full.split(columns[0].shape[1], 1), both, outs, strict=True):
        expected = torch.autograd.grad(case(*inputs, idx, m), inputs, half.contiguous().reshape(out.shape))
        for a, b in zip(others, expected, strict=True):
            assert same_bits(a.grad, b)


@every_op_and_dtype
def test_5_expanded_gradients_and_none(case):
    idx, m = index(0, 0, 1, 3, 3, 3), 4
    inputs = leaves(case.inputs(6, m))
    out = case(*inputs, idx, m)
    number = torch.tensor(0.7, dtype=case.dtype)
    found = torch.autograd.grad(out, inputs, number.expand(out.shape), retain_graph=True)
    expected = torch.autograd.grad(out, inputs, torch.full_like(out, 0.7))
    assert all(map(same_bits, found, expected))

    class Two(torch.autograd.Function):
        """Hands None back for its second input: no gradient arrives there."""

        @staticmethod
        def forward(ctx, a, b):
            return a * 1

        @staticmethod
        def backward(ctx, g):
            return g, None

    used, unused = leaves(case.inputs(6, m)), leaves(case.inputs(6, m, 1))
    y = Two.apply(case(*used, idx, m), case(*unused, idx, m))
    grads = torch.autograd.grad(y, [*used, *unused], torch.full_like(y, 0.7), allow_unused=True)
    assert all(map(same_bits, grads[: len(used)], expected))
    assert all(g is None or (g == 0).all() for g in grads[len(used) :])


# ------------------------------------------------------------------ 6: idx that does not fit
@every_op_and_dtype
def test_6_numbers_that_do_not_fit(case):
    inputs = case.inputs(3, 3)
    for bad, word in (
        (index(0, 1, 2**32 + 1, dtype=torch.int64), "range"),
        (index(0, 1, 2, dtype=torch.uint8), "int32"),
        (torch.tensor([False, True, True]), "int32"),
        (index(-1, 0, 1), "negative"),
        (index(0, 1, 3), "range"),
        (index(0, 2, 1), "sorted"),
        (torch.tensor([0.0, 1.0, 2.0]), "int32"),
        (index(0, 1, 2)[None], "1-D"),
    ):
        with pytest.raises(ValueError, match=word):
            case(*inputs, bad, 3)


@every_op_and_dtype
@pytest.mark.parametrize("n", [6, 3000])
@pytest.mark.parametrize("value", [-1, 5, 2**31 - 1, -(2**31)])
def test_6_numbers_changed_through_an_alias(case, n, value):
    """Between forward and backward, and between that and the second: any values, no access out of bounds."""
    m = 4
    idx = torch.arange(n, dtype=torch.int32) * m // n
    idx = idx.to(torch.int32)
    inputs = leaves(case.inputs(n, m))
    w = case.weights(n, m)
    out = case(*inputs, idx, m)
    alias = idx.numpy()
    alias[1] = alias[-2] = value
    grads = torch.autograd.grad(out, inputs, w, create_graph=True)
    alias[0] = alias[-1] = value
    live = [g for g in grads if g.requires_grad]
    if live:
        torch.autograd.grad(live, inputs, [torch.ones_like(g) for g in live], allow_unused=True)
    shared = torch.from_dlpack(idx)
    assert shared.data_ptr() == idx.data_ptr()


# ------------------------------------------------------------------ 7: empty input
@every_op_and_dtype
@pytest.mark.parametrize("m", [3, 0])
@pytest.mark.filterwarnings("ignore")
def test_7_empty_input(case, m, fresh_dynamo):
    idx = torch.empty(0, dtype=torch.int32)
    inputs = leaves(case.inputs(0, m))
    out = case(*inputs, idx, m)
    assert out.shape == case.op.out.shape(0, m, case.width) and (out == 0).all()
    out.sum().backward()
    assert all(a.grad.shape == a.shape and (a.grad == 0).all() for a in inputs)
    plain = case.inputs(0, m)
    for jacobian in (jacrev, jacfwd):
        result = jacobian(lambda *a: case(*a, idx, m), tuple(range(len(plain))))(*plain)
        assert [r.shape for r in result] == [out.shape + a.shape for a in plain]
    batched = vmap(lambda *a: case(*a, idx, m))(*[a.expand(2, *a.shape) for a in plain])
    assert batched.shape == (2, *out.shape) and (batched == 0).all()
    program = torch.compile(lambda *a: case(*a, idx, m), fullgraph=True, backend="aot_eager")
    again = leaves(plain)
    program(*again).sum().backward()
    assert all((a.grad == 0).all() for a in again)


# ------------------------------------------------------------------ 8: graphs that are walked twice
@every_op_and_dtype
def test_8_graph_walked_twice(case):
    idx, m = index(0, 0, 1, 3, 3, 3), 4
    inputs = leaves(case.inputs(6, m))
    out = case(*inputs, idx, m)
    w, v = case.weights(6, m, 1), case.weights(6, m, 2)
    first = torch.autograd.grad(out, inputs, w, retain_graph=True)
    out.backward(v)
    for a, b in zip(inputs, first, strict=True):
        assert not torch.equal(a.grad, b)
    again = leaves(case.inputs(6, m))
    case(*again, idx, m).backward(v)
    assert all(same_bits(a.grad, b.grad) for a, b in zip(inputs, again, strict=True))


@every_op
def test_8_backward_inside_a_backward(case):
    idx, m = index(0, 0, 1, 3, 3, 3), 4
    w = case.weights(6, m)

    class Energy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arrays):
            ctx.save_for_backward(*arrays)
            return (case(*arrays, idx, m) * w).sum()

        @staticmethod
        def backward(ctx, g):
            arrays = leaves(ctx.saved_tensors)
            with torch.enable_grad():
                (case(*arrays, idx, m) * w).sum().backward()
            return tuple(g * a.grad for a in arrays)

    inputs, plain = leaves(case.inputs(6, m)), leaves(case.inputs(6, m))
    (case(*inputs, idx, m) * w).sum().add(Energy.apply(*inputs)).backward()
    (2 * (case(*plain, idx, m) * w).sum()).backward()
    for a, b in zip(inputs, plain, strict=True):
        assert_close(a.grad, b.grad)


# ------------------------------------------------------------------ 9: zero forces, silently
@every_dtype
@pytest.mark.filterwarnings("ignore")
def test_9_compiled_forces(dtype, fresh_dynamo):
    """A pair energy pooled over molecules: compiled energies and forces equal the eager ones, and are not zero."""
    atoms = index(0, 0, 0, 1, 1, 1, 1)
    i = torch.tensor([0, 0, 1, 3, 3, 3, 4, 4, 5])
    j = torch.tensor([1, 2, 2, 4, 5, 6, 5, 6, 6])
    pairs = atoms[i]
    g = torch.Generator().manual_seed(4)
    x = torch.randn(7, 3, generator=g, dtype=torch.float64).to(dtype) * 2

    def energy(x):
        d = x[i] - x[j]
        s = 1 / (d * d).sum(1)
        s = s * s * s
        return segmented_sum(4 * (s * s - s), pairs, 2)

    weights = torch.tensor([1.0, -0.6], dtype=dtype)
    program = torch.compile(energy, fullgraph=True, backend="aot_eager")
    results = []
    for function in (energy, program):
        leaf = x.clone().requires_grad_()
        e = function(leaf)
        (force,) = torch.autograd.grad(e, leaf, weights)
        results.append((e.detach(), force))
    torch.testing.assert_close(results[1], results[0])
    assert results[1][0].abs().min() > 1e-4 and results[1][1].abs().max(1).values.min() > 1e-4


# ------------------------------------------------------------------ 10: tests that cannot fail
@every_op_and_dtype
def test_10_gradients_with_equal_weights_say_little(case):
    """With random weights, and segments of unequal length, a gradient that is constant or zero would be noticed."""
    idx, m = index(0, 1, 1, 3, 3, 3), 4
    inputs, w = case.inputs(6, m), case.weights(6, m)
    grads = torch.autograd.grad(case(*(a := leaves(inputs)), idx, m), a, w)
    wide = leaves([t.double() for t in inputs])
    expected = torch.autograd.grad(case.composed(*wide, idx, m), wide, w.double())
    for g, e, array in zip(grads, expected, case.op.args, strict=True):
        torch.testing.assert_close(g.double(), e, rtol=100 * case.eps, atol=100 * case.eps)
        assert not torch.allclose(g, g.flatten()[0].expand(g.shape)), "constant: this data cannot tell"
        if array.kind == "segment":
            assert (g[2] == 0).all() and (g[[0, 1, 3]] != 0).any()


def test_10_mean_of_means():
    """Of unequal groups, weighted: not constant."""
    idx = index(0, 1, 1, 3, 3, 3)
    x = torch.arange(6.0, requires_grad=True)
    (segmented_mean(x, idx, 4) * torch.tensor([1.0, 2.0, 5.0, 6.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


# ------------------------------------------------------------------ 14: bitwise repeatability
@every_op_and_dtype
@pytest.mark.parametrize("size", [3, 21, 200])
def test_14_eight_identical_molecules(case, size):
    """Twice the same bits, each equal to the molecule alone: values, first and second derivatives."""
    one, single = case.inputs(size, 1), random_cotangents(case, size, 1, 2)
    eight = [torch.cat([a] * 8) for a in one], [[torch.cat([c] * 8) for c in order] for order in single]
    idx = torch.arange(8, dtype=torch.int32).repeat_interleave(size)
    alone = derivatives(lambda *a: case(*a, torch.zeros(size, dtype=torch.int32), 1), one, single)
    for _ in range(2):
        batch = derivatives(lambda *a: case(*a, idx, 8), *eight)
        for tensors, expected in zip(batch, alone, strict=True):
            for a, b in zip(tensors, expected, strict=True):
                assert same_bits(a, torch.cat([b] * 8))
