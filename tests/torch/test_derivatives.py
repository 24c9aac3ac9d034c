# SPDX-License-Identifier: Apache-2.0
"""Derivatives of every op: finite differences, ATen compositions, every layout, what is computed."""

import itertools

import compositions
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_battery import (
    DTYPES,
    LENGTHS,
    assert_close,
    derivatives,
    every_case,
    every_float64,
    every_layout,
    every_op,
    every_op_and_dtype,
    every_width,
    over,
    random_cotangents,
    same_bits,
    slots,
)

from segmentops.torch import segment_ops
from segmentops.torch.segment_ops import (
    segmented_dot,
    segmented_max_norm,
    segmented_mean,
    segmented_rms_norm,
    segmented_sum,
)

SMALL = LENGTHS["empty"]  # empty first, middle and last segments


def bound(case, idx, m):
    """The op as a function of its arrays alone."""
    return lambda *arrays: case(*arrays, idx, m)


# ------------------------------------------------------------------ finite differences
@every_float64
def test_gradcheck(case):
    idx, m = case.index(SMALL), len(SMALL)
    assert gradcheck(bound(case, idx, m), case.inputs(len(idx), m, grad=True))


@over((torch.float64,), widths=2)
@pytest.mark.parametrize("lengths", [SMALL, (6,), (1, 1, 1)], ids=str)
def test_gradgradcheck(case, lengths):
    idx, m = case.index(lengths), len(lengths)
    weights = case.weights(len(idx), m).requires_grad_()
    assert gradgradcheck(bound(case, idx, m), case.inputs(len(idx), m, grad=True), weights)


@every_float64
def test_gradgradcheck_fast(case):
    idx, m = case.index(LENGTHS["sizes"]), len(LENGTHS["sizes"])
    inputs = case.inputs(len(idx), m, grad=True)
    assert gradcheck(bound(case, idx, m), inputs, fast_mode=True)
    assert gradgradcheck(bound(case, idx, m), inputs, fast_mode=True)


@over((torch.float64,), (torch.int32,), widths=2)
def test_third_order_by_finite_differences(case):
    """The second derivative along a line, against the third."""
    idx, m = case.index(SMALL), len(SMALL)
    n = len(idx)
    inputs, cotangents = case.inputs(n, m), random_cotangents(case, n, m, 3)
    direction = case.random(case.op.args, n, m, seed=50)

    def second(step):
        moved = [a + step * d for a, d in zip(inputs, direction, strict=True)]
        return derivatives(bound(case, idx, m), moved, cotangents[:2])[2]

    h = 1e-5
    third = derivatives(bound(case, idx, m), inputs, cotangents)[3]
    weighted = [(c * (a - b)).sum() / (2 * h) for c, a, b in zip(cotangents[2], second(h), second(-h), strict=True)]
    exact = sum((g * d).sum() for g, d in zip(third, direction, strict=False))
    assert_close(sum(weighted), exact, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ against compositions of ATen ops
def compare_orders(case, inputs, idx, m, order, rtol, atol):
    n = len(idx)
    cotangents = random_cotangents(case, n, m, order)
    found = derivatives(bound(case, idx, m), inputs, cotangents)
    wide = [a.double() for a in inputs], [[c.double() for c in o] for o in cotangents]
    expected = derivatives(lambda *arrays: case.composed(*arrays, idx, m), *wide)
    for found_order, expected_order in zip(found, expected, strict=True):
        for a, b in zip(found_order, expected_order, strict=True):
            assert a.dtype == case.dtype
            size = max(1.0, b.abs().max().item() if b.numel() else 0.0)
            assert_close(a.double(), b, rtol=rtol, atol=atol * size)


@every_case
@every_layout
def test_first_and_second_order(case, lengths):
    tolerance = 50 * case.eps
    idx, m = case.index(lengths), len(lengths)
    compare_orders(case, case.inputs(len(idx), m), idx, m, 2, tolerance, tolerance)


@every_width
def test_third_order(case):
    for lengths in (LENGTHS["mixed"], (), (0, 0)):
        idx, m = case.index(lengths), len(lengths)
        compare_orders(case, case.inputs(len(idx), m), idx, m, 3, 500 * case.eps, 500 * case.eps)


@every_op_and_dtype
def test_fourth_order(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    compare_orders(case, case.inputs(len(idx), m), idx, m, 4, 500 * case.eps, 500 * case.eps)


@every_width
def test_all_zero_segments(case):
    """Values and derivatives of every order are finite, and 0 for the norms, which have a kink there."""
    idx, m = case.index((3, 0, 2, 4)), 4
    zero = idx == 2
    inputs = case.inputs(len(idx), m)
    for a, arg in zip(inputs, case.op.args, strict=True):
        a[zero if arg.kind == "element" else 2] = 0
    for order in (2, 3):
        cotangents = random_cotangents(case, len(idx), m, order)
        found = derivatives(bound(case, idx, m), inputs, cotangents)
        compare_orders(case, inputs, idx, m, order, 500 * case.eps, 500 * case.eps)
        for tensors, kinds in zip(found, [[case.op.out], *_leaves(case.op, order)], strict=True):
            for t, array in zip(tensors, kinds, strict=True):
                assert torch.isfinite(t).all()
                if case.op.kink:
                    assert (t[zero if array.kind == "element" else 2] == 0).all()


def _leaves(op, order):
    """The `Array` of every gradient of `derivatives`, by order: the inputs, then the cotangents so far."""
    found, leaves = [], list(op.args)
    for cotangents in slots(op, order):
        found.append(list(leaves))
        leaves = leaves + cotangents
    return found


@every_op
def test_empty_segments_have_zero_derivatives(case):
    idx, m = case.index((0, 2, 0, 0, 3, 0)), 6
    empty = [0, 2, 3, 5]
    for order in (2, 3):
        inputs, cotangents = case.inputs(len(idx), m), random_cotangents(case, len(idx), m, order)
        found = derivatives(bound(case, idx, m), inputs, cotangents)
        for tensors, arrays in zip(found, [[case.op.out], *_leaves(case.op, order)], strict=True):
            for t, array in zip(tensors, arrays, strict=True):
                assert torch.isfinite(t).all()
                if array.kind == "segment":
                    assert (t[empty] == 0).all()


@pytest.mark.parametrize("scale", [1e-15, 1e-7, 1.0, 1e7, 1e15])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_of_small_and_large_numbers(scale, dtype):
    """Two orders in float32 for 1e-15 to 1e15: no product overflows or underflows on the way."""
    g = torch.Generator().manual_seed(3)
    idx = torch.tensor([0] * 5 + [2] * 40, dtype=torch.int32)
    x, v = (torch.randn(45, 3, generator=g, dtype=torch.float64).to(dtype) for _ in range(2))
    w = torch.randn(3, generator=g, dtype=torch.float64).to(dtype)
    x = x * scale

    def run(function, x, w, v):
        return derivatives(lambda x: function(x, idx, 3), [x], [[w], [v]])

    found = run(segmented_rms_norm, x, w, v)
    expected = run(compositions.segmented_rms_norm, x.double(), w.double(), v.double())
    for a, b in zip(sum(found, []), sum(expected, []), strict=True):
        largest = b.abs().max().item()
        assert 0 < largest
        assert_close(a.double() / largest, b / largest, rtol=0, atol=20 * torch.finfo(dtype).eps)


def test_max_norm_ties_and_nan():
    idx = torch.tensor([0, 0, 0, 2, 2, 2], dtype=torch.int32)
    x = torch.tensor([[3.0, 4.0], [5.0, 0.0], [0.0, -5.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], requires_grad=True)
    out = segmented_max_norm(x, idx, 3)
    assert out.tolist() == [5.0, 0.0, 1.0]
    (g,) = torch.autograd.grad(out, x, torch.tensor([2.0, 7.0, -3.0]))
    assert_close(g, torch.tensor([[1.2, 1.6], [0, 0], [0, 0], [-3, 0], [0, 0], [0, 0]]), rtol=1e-6, atol=1e-6)
    nan = float("nan")
    x = torch.tensor([[1.0, 0.0], [nan, 0.0], [9.0, 9.0], [0.0, nan], [2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    out = segmented_max_norm(x, idx, 3)
    assert out[0].isnan() and out[1] == 0 and out[2].isnan()
    (g,) = torch.autograd.grad(out.nan_to_num(0.0).sum() + out[0] * 1, x)
    assert (g[[0, 2]] == 0).all(), "the first NaN is the maximum, alone"


# ------------------------------------------------------------------ gradients that arrive in any layout
def _layouts(w):
    """Gradients with the same values in different memory."""
    yield w.clone()
    if w.dim():
        yield torch.stack([w, w + 1], -1)[..., 0]
        yield torch.cat([w, w])[: len(w)] if len(w) else w
        yield torch.stack([w, w + 5], 1).reshape(-1, *w.shape[1:])[::2]
        yield w.permute(*reversed(range(w.dim()))).contiguous().permute(*reversed(range(w.dim())))
        yield torch.cat([w.new_ones(1), w.reshape(-1)])[1:].view(w.shape)
        yield torch.complex(torch.zeros_like(w), -w).conj().imag


@every_width
def test_gradient_layouts(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    n = len(idx)
    inputs, cotangents = case.inputs(n, m, grad=True), random_cotangents(case, n, m, 2)

    def run(w, v):
        w = w.detach().requires_grad_()
        first = torch.autograd.grad(case(*inputs, idx, m), inputs, w, create_graph=True)
        second = torch.autograd.grad(first, [*inputs, w], v, allow_unused=True, materialize_grads=True)
        return [*first, *second]

    expected = run(cotangents[0][0], cotangents[1])
    for w in _layouts(cotangents[0][0]):
        assert all(map(same_bits, run(w, cotangents[1]), expected))
    for vs in zip(*map(_layouts, cotangents[1]), strict=True):
        assert all(map(same_bits, run(cotangents[0][0], vs), expected))


@every_width
def test_gradient_with_stride_zero(case):
    """The gradient of a sum, or of a mean, is one number expanded."""
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m, grad=True)
    found = torch.autograd.grad(case(*inputs, idx, m).sum() * 1.5, inputs, create_graph=True)
    ones = torch.full(case.op.out.shape(len(idx), m, case.width), 1.5, dtype=case.dtype)
    expected = torch.autograd.grad(case(*inputs, idx, m), inputs, ones, create_graph=True)
    assert all(same_bits(a.detach(), b.detach()) for a, b in zip(found, expected, strict=True))
    leaves = [g for g in found if g.requires_grad]
    if leaves:
        again = [g for g in expected if g.requires_grad]
        second = torch.autograd.grad(sum(g.sum() for g in leaves), inputs, allow_unused=True, materialize_grads=True)
        other = torch.autograd.grad(
            again, inputs, list(map(torch.ones_like, again)), allow_unused=True, materialize_grads=True
        )
        assert all(map(same_bits, second, other))


# ------------------------------------------------------------------ which gradients there are
@every_op_and_dtype
def test_only_some_inputs_require_gradients(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    plain = case.inputs(len(idx), m)
    w = case.weights(len(idx), m)
    every = [a.clone().requires_grad_() for a in plain]
    expected = torch.autograd.grad(case(*every, idx, m), every, w)
    for which in range(len(plain)):
        inputs = [a.clone().requires_grad_(k == which) for k, a in enumerate(plain)]
        out = case(*inputs, idx, m)
        out.backward(w)
        for k, a in enumerate(inputs):
            assert (a.grad is not None) == (k == which)
        assert same_bits(inputs[which].grad, expected[which])
    assert not case(*plain, idx, m).requires_grad


@every_op
def test_second_order_of_only_some_inputs(case):
    """Each subset of the first-order gradients and cotangents that can require gradients, against ATen."""
    idx, m = case.index(LENGTHS["mixed"]), 5
    n = len(idx)
    plain, ((w,), v) = case.inputs(n, m), random_cotangents(case, n, m, 2)

    def run(function, wanted):
        *inputs, cotangent = [a.clone().requires_grad_(r) for a, r in zip([*plain, w], wanted, strict=True)]
        probe = [(a, c) for a, c in zip(inputs, v, strict=True) if a.requires_grad]
        first = torch.autograd.grad(function(*inputs, idx, m), [a for a, _ in probe], cotangent, create_graph=True)
        live = [(g, c) for g, (_, c) in zip(first, probe, strict=True) if g.requires_grad]
        if not live:
            return [g.detach() for g in first]
        asked = [a for a in [*inputs, cotangent] if a.requires_grad]
        outputs, weights = zip(*live, strict=True)
        second = torch.autograd.grad(outputs, asked, weights, allow_unused=True, materialize_grads=True)
        return [g.detach() for g in [*first, *second]]

    for wanted in itertools.product([False, True], repeat=len(plain) + 1):
        if not any(wanted[:-1]):
            continue
        for a, b in zip(run(case, wanted), run(case.composed, wanted), strict=True):
            assert_close(a, b)


@every_op
def test_index_has_no_gradient(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m, grad=True)
    out = case(*inputs, idx, m)
    out.backward(case.weights(len(idx), m))
    assert idx.grad is None and not idx.requires_grad


@every_op
def test_unused_outputs(case):
    """`None` for an output that the loss does not use, and for an input that the output does not."""
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m, grad=True)
    used, unused = case(*inputs, idx, m), case(*inputs, idx, m)
    other = torch.zeros(3, dtype=case.dtype, requires_grad=True)
    w = case.weights(len(idx), m)
    grads = torch.autograd.grad((used * w).sum(), [*inputs, other], allow_unused=True, create_graph=True)
    assert grads[-1] is None and unused.grad_fn is not None
    # only one of several first-order gradients goes on: the double backward gets None for the rest
    for g in grads[:-1]:
        if g.requires_grad:
            torch.autograd.grad((g * torch.randn_like(g)).sum(), inputs, allow_unused=True, retain_graph=True)


def allocated(run):
    """Bytes that torch allocates while `run` runs, counted by its profiler: no time, no internals."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    return sum(
        e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]" and e.nbytes() > 0
    )


@over((torch.float64,), (torch.int32,), widths=2)
def test_gradients_that_are_not_needed_are_not_computed(case):
    """Backward of one input of two allocates one gradient, not two."""
    if len(case.op.args) < 2:
        pytest.skip("one input")
    n = 4096
    idx = torch.arange(n, dtype=torch.int32)  # as many segments as elements: both gradients are large
    w = case.weights(n, n)
    sizes = [a.numel() * a.element_size() for a in case.inputs(n, n)]

    def backward(wanted):
        inputs = [a.requires_grad_(r) for a, r in zip(case.inputs(n, n), wanted, strict=True)]
        probe = [a for a in inputs if a.requires_grad]
        out = case(*inputs, idx, n)
        torch.autograd.grad(out, probe, w, retain_graph=True)  # whatever is allocated once
        return allocated(lambda: torch.autograd.grad(out, probe, w))

    both = backward((True, True))
    assert both >= sum(sizes), "the profiler does not see the allocations: this test cannot fail"
    for which, wanted in enumerate([(True, False), (False, True)]):
        assert backward(wanted) <= sizes[which] + min(sizes) / 2


MAGNITUDES = {  # exponents of 2 from the least subnormal numbers on, as far as squares fit into float64
    torch.float32: range(-147, 126, 21),
    torch.bfloat16: range(-131, 126, 32),
    torch.float16: range(-22, 14, 5),
    torch.float64: range(-510, 510, 60),
}


@pytest.mark.parametrize("dtype", MAGNITUDES, ids=str)
@pytest.mark.parametrize("op", [segmented_rms_norm, segmented_max_norm])
def test_norms_of_every_magnitude(op, dtype):
    """The derivatives of order k at c x are c^(1 - k) times those at x: right where they are numbers, never NaN."""
    idx = torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32)
    x = torch.tensor([[1.0, -2, 0], [0, 0, 0], [3, 0, 1], [1, 1, 2], [0, 1, 0], [0, 0, 0]], dtype=dtype)
    v = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)

    def orders(x):
        """(order, derivative)"""
        along = v.to(x.dtype)
        leaf = x.clone().requires_grad_()
        found = [(0, op(leaf, idx, 2))]
        for order in (1, 2, 3):
            last = found[-1][1] * (along if order > 1 else 1)
            (gradient,) = torch.autograd.grad(last.sum(), leaf, create_graph=True)
            found.append((order, gradient))
        function = lambda x: op(x, idx, 2)  # noqa: E731
        tangent = lambda x: torch.func.jvp(function, (x,), (along,))[1]  # noqa: E731
        found.append((1, tangent(x)))
        found.append((2, torch.func.jvp(tangent, (x,), (along,))[1]))
        found.append((2, torch.func.jvp(torch.func.grad(lambda x: function(x).sum()), (x,), (along,))[1]))
        found.append((2, torch.func.grad(lambda x: tangent(x).sum())(x)))
        return [(k, d.detach().double()) for k, d in found]

    limits = torch.finfo(dtype)
    at_one = orders(x.double())
    for exponent in MAGNITUDES[dtype]:
        scaled = (x.double() * 2.0**exponent).to(dtype)
        assert torch.equal(scaled.double(), x.double() * 2.0**exponent)
        for (order, found), (_, expected) in zip(orders(scaled), at_one, strict=True):
            assert not found.isnan().any(), (exponent, order)
            expected = expected * 2.0 ** (exponent * (1 - order))
            there = expected.abs() <= limits.max / 2
            bound = 8 * limits.eps * expected.abs().max() + limits.tiny * limits.eps
            assert ((found - expected).abs() <= bound)[there].all(), (exponent, order)


# ------------------------------------------------------------------ graphs
@every_op_and_dtype
def test_graph_walked_twice(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    n = len(idx)
    inputs = case.inputs(n, m, grad=True)
    out = case(*inputs, idx, m)
    w, v = case.weights(n, m, 1), case.weights(n, m, 2)
    first = torch.autograd.grad(out, inputs, w, retain_graph=True)
    second = torch.autograd.grad(out, inputs, v, retain_graph=True)
    out.backward(w)
    for a, b, c in zip(inputs, first, second, strict=True):
        assert same_bits(a.grad, b) and not torch.equal(b, c)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward(w)


@every_op
def test_reentrant_backward(case):
    """A backward inside the backward of a custom function."""
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m, grad=True)
    w = case.weights(len(idx), m)

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, *arrays):
            ctx.save_for_backward(*arrays)
            return y.clone()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                inner = [a.detach().requires_grad_() for a in ctx.saved_tensors]
                case(*inner, idx, m).backward(w)
            return g * 2, *[a.grad for a in inner]

    Reentrant.apply(case(*inputs, idx, m), *inputs).backward(w)
    again = case.inputs(len(idx), m, grad=True)
    case(*again, idx, m).backward(w)
    for a, b in zip(inputs, again, strict=True):
        assert_close(a.grad, 3 * b.grad)


@every_op
def test_in_place_edits_are_detected(case):
    """An input that the backward needs and that has changed since: an error, not a wrong gradient."""
    m = 5
    w = case.weights(11, m)
    caught = 0
    for which in range(len(case.op.args) + 1):
        idx = case.index(LENGTHS["mixed"])
        inputs = case.inputs(len(idx), m, grad=True)
        scaled = [a * 1 for a in inputs]
        out = case(*scaled, idx, m)
        expected = torch.autograd.grad(case(*inputs, idx, m), inputs, w)
        with torch.no_grad():
            (idx.clamp_(max=0) if which == len(scaled) else scaled[which].mul_(3.0))
        try:
            found = torch.autograd.grad(out, inputs, w)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            caught += 1
        else:  # then that input is not needed
            assert all(map(same_bits, found, expected))
    assert caught >= (1 if case.op.linear and len(case.op.args) == 1 else len(case.op.args)), caught


@every_op
def test_outputs_may_be_edited_in_place(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m, grad=True)
    w = case.weights(len(idx), m)
    out = case(*inputs, idx, m)
    expected = torch.autograd.grad(out, inputs, w, retain_graph=True)
    out = case(*inputs, idx, m)
    try:
        out.mul_(2.0)
        found = torch.autograd.grad(out, inputs, w)
    except RuntimeError as error:  # an op may save its output; then autograd says so
        assert "inplace" in str(error)
    else:
        for a, b in zip(found, expected, strict=True):
            assert_close(a, 2 * b)


@every_op_and_dtype
def test_accumulation_into_grad(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    w = case.weights(len(idx), m)
    inputs = case.inputs(len(idx), m, grad=True)
    for _ in range(3):
        case(*inputs, idx, m).backward(w)
    once = case.inputs(len(idx), m, grad=True)
    case(*once, idx, m).backward(w)
    for a, b in zip(inputs, once, strict=True):
        assert_close(a.grad, b.grad * 3, rtol=1e-6, atol=1e-6)


@every_op
def test_same_tensor_twice(case):
    """dot(x, x) and the like: the gradient is the sum over both places."""
    if len({a.shape(4, 4, (4, 4) if case.op.matrices else ()) for a in case.op.args}) > 1:
        pytest.skip("arguments of different shapes")
    idx = torch.arange(4, dtype=torch.int32)
    x = torch.randn(4, generator=case.generator(1), dtype=case.dtype, requires_grad=True)
    w = torch.randn(4, generator=case.generator(2), dtype=case.dtype)
    v = torch.randn(4, generator=case.generator(3), dtype=case.dtype)

    def run(function):
        return derivatives(lambda x: function(*[x] * len(case.op.args), idx, 4), [x], [[w], [v]])

    for a, b in zip(run(case), run(case.composed), strict=True):
        for c, d in zip(a, b, strict=True):
            assert_close(c, d)


def test_loss_on_energy_and_forces():
    """The main use: energy pooled, forces its gradient, a loss on both."""
    g = torch.Generator().manual_seed(0)
    idx = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3, 3], dtype=torch.int32)
    x0 = torch.randn(9, 3, generator=g, dtype=torch.float64)
    target = torch.randn(9, 3, generator=g, dtype=torch.float64)
    weights = torch.randn(4, generator=g, dtype=torch.float64)

    def loss(ops, x):
        radius = ops.segmented_rms_norm(x, idx, 4)
        energy = ops.segmented_sum((x * x).sum(1) ** 2, idx, 4) + ops.segmented_dot(x, x.cos(), idx, 4) * radius
        scaled = ops.segmented_mul(x, ops.segmented_max_norm(x, idx, 4), idx, 4)
        energy = energy + ops.segmented_mean(scaled, idx, 4).pow(2).sum(1)
        (force,) = torch.autograd.grad((energy * weights).sum(), x, create_graph=True)
        return (energy * weights).sin().sum() + ((force + target) ** 2).sum()

    found = []
    for ops in (segment_ops, compositions):
        x = x0.clone().requires_grad_()
        loss(ops, x).backward()
        found.append(x.grad)
    assert found[0].abs().min() > 1e-6
    assert_close(*found)


@pytest.mark.parametrize("width", [1, 3, 4, 9])
@pytest.mark.parametrize("expanded", [False, True])
def test_deviation_of_constant_data(width, expanded):
    """The mean of equal numbers is that number, so the deviation is 0, and so is every derivative of it."""
    sizes = [*range(1, 301), 100_000]
    idx = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for value in (0.1, 1 / 3, 1e150):
        constant = torch.tensor(value, dtype=torch.float64).expand(len(idx), width)
        x = (constant if expanded else constant.clone()).requires_grad_()
        deviation = segmented_rms_norm(x - segmented_mean(x, idx, len(sizes))[idx], idx, len(sizes))
        assert not deviation.any()
        (force,) = torch.autograd.grad(deviation.sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(force, x, torch.randn_like(force))
        assert not force.any() and not product.any()


def test_chain_of_ops_shares_one_index():
    idx = torch.tensor([0, 0, 2, 2, 2], dtype=torch.int64)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)

    def function(x):
        centre = segmented_mean(x, idx, 3)
        return segmented_dot(x - centre[idx], x, idx, 3) + segmented_sum(x, idx, 3).prod(1)

    assert gradcheck(function, (x,)) and gradgradcheck(function, (x,))
