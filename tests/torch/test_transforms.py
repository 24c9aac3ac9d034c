# SPDX-License-Identifier: Apache-2.0
"""Every transform and tracer of torch, for every op, against compositions of ATen ops, in float64.

The data have an empty segment, and one whose elements are all 0, where the norms have a kink.
"""

import contextlib
import copy
import io
import itertools
import threading

import pytest
import torch
from torch.autograd import forward_ad as fw
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from torch_battery import DTYPES, assert_close, derivatives, every_op, make_index, over, random_cotangents, same_bits

from segmentops.torch.segment_ops import (
    segmented_matvec,
    segmented_max_norm,
    segmented_mean,
    segmented_rms_norm,
    segmented_sum,
)

LENGTHS = (3, 2, 0, 2, 1)
N, M = 8, 5
IDX = make_index(LENGTHS)
OTHER = make_index((1, 0, 4, 0, 3))
NAMESPACE = "segmentops"
two_widths = over((torch.float64,), (torch.int32,), widths=2)


def data(case, *batch, seed=0):
    """Inputs, with leading batch dimensions if wanted; segment 3 is all zeros."""
    inputs = []
    for k in range(max(1, torch.Size(batch).numel())):
        arrays = case.inputs(N, M, seed=seed + 100 * k)
        for a, kind in zip(arrays, case.op.args, strict=True):
            a[IDX == 3 if kind.kind == "element" else 3] = 0
        inputs.append(arrays)
    if not batch:
        return inputs[0]
    return [torch.stack(a).reshape(*batch, *a[0].shape) for a in zip(*inputs, strict=True)]


def functions(case, idx=IDX, m=M):
    """The op and its composition, as functions of its arrays."""
    return (lambda *a: case(*a, idx, m)), (lambda *a: case.composed(*a, idx, m))


def losses(case, idx=IDX, m=M):
    """A scalar that weights every output with its own random number."""
    w = case.weights(N, m)

    def loss(f):
        return lambda *a: (f(*a) ** 3 * w).sum() + (f(*a).sin() * 2 * w).sum()

    return tuple(map(loss, functions(case, idx, m)))


def compare(a, b):
    """Equal, tensor by tensor, through lists and tuples of any depth."""
    if isinstance(a, torch.Tensor):
        assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-10)
    else:
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            compare(x, y)


def requiring_grad(inputs):
    return [a.clone().requires_grad_() for a in inputs]


# ------------------------------------------------------------------ torch.func
def _seeds(inputs):
    return tuple(torch.cos(torch.arange(a.numel(), dtype=a.dtype)).view(a.shape) for a in inputs)


TRANSFORMS = {
    "grad": lambda f, n: grad(f, n),
    "jacrev": lambda f, n: jacrev(f, n),
    "jacfwd": lambda f, n: jacfwd(f, n),
    "hessian": lambda f, n: hessian(f, n),
    "jacrev_jacrev": lambda f, n: jacrev(jacrev(f, n), n),
    "jacrev_jacfwd": lambda f, n: jacrev(jacfwd(f, n), n),
    "jacfwd_jacfwd": lambda f, n: jacfwd(jacfwd(f, n), n),
    "vjp": lambda f, n: lambda *a: vjp(f, *a)[1](torch.tensor(1.5, dtype=torch.float64)),
    "vjp_of_grad": lambda f, n: lambda *a: vjp(grad(f, n), *a)[1](_seeds(a)),
    "jvp": lambda f, n: lambda *a: jvp(f, a, _seeds(a)),
    "jvp_of_grad": lambda f, n: lambda *a: jvp(grad(f, n), a, _seeds(a)),
    "grad_of_jvp": lambda f, n: grad(lambda *a: jvp(f, a, _seeds(a))[1], n),
    "jvp_of_jvp": lambda f, n: lambda *a: jvp(lambda *b: jvp(f, b, _seeds(b))[1], a, _seeds(a)),
    "linearize": lambda f, n: lambda *a: linearize(f, *a)[1](*_seeds(a)),
    "functionalize": lambda f, n: functionalize(f),
    "functionalize_grad": lambda f, n: functionalize(grad(f, n)),
    "grad_functionalize": lambda f, n: grad(functionalize(f), n),
}
every_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())


@two_widths
@every_transform
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_func(case, transform):
    inputs = data(case)
    which = tuple(range(len(inputs)))
    ours, theirs = (transform(f, which)(*inputs) for f in losses(case))
    compare(ours, theirs)


@every_op
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_pending_negations(case):
    """Inputs and idx whose negation is a flag, not in memory: torch makes no view of such a dual number."""

    def pending(a):
        view = torch.complex(torch.zeros_like(a), -a).conj().imag if a.is_floating_point() else torch._neg_view(-a)
        assert view.is_neg() and torch.equal(view, a)
        return view

    inputs = data(case)
    which = tuple(range(len(inputs)))
    third = [
        lambda f, n: jacfwd(jacrev(grad(f))),
        lambda f, n: jacrev(jacrev(grad(f))),
        lambda f, n: jacfwd(jacfwd(jacfwd(f))),
    ]
    for transform in (*TRANSFORMS.values(), *third):
        expected = transform(losses(case)[1], which)(*inputs)
        for idx in (IDX, pending(IDX)):
            compare(transform(losses(case, idx)[0], which)(*map(pending, inputs)), expected)


@every_op
def test_third_order(case):
    inputs = data(case)[:1]
    rest = data(case)[1:]
    for outer, middle, inner in ((jacfwd, jacrev, grad), (jacrev, jacrev, grad), (jacfwd, jacfwd, jacfwd)):
        ours, theirs = (outer(middle(inner(lambda x, g=g: g(x, *rest))))(*inputs) for g in losses(case))
        compare(ours, theirs)
        assert torch.isfinite(ours).all()


@every_op
@pytest.mark.parametrize("which", [0, 1])
def test_func_of_one_argument(case, which):
    """The others are constants: no tangent, no gradient."""
    inputs = data(case)
    if which >= len(inputs):
        pytest.skip("one input")
    for transform in (grad, jacrev, jacfwd, hessian):
        ours, theirs = (transform(f, which)(*inputs) for f in losses(case))
        compare(ours, theirs)

    def tangent(f):
        def one(x):
            return f(*inputs[:which], x, *inputs[which + 1 :])

        return jvp(one, (inputs[which],), _seeds([inputs[which]]))

    compare(*map(tangent, losses(case)))


@every_op
def test_whole_jacobians(case):
    """Of the op itself, all outputs."""
    inputs = data(case)
    which = tuple(range(len(inputs)))
    ours, theirs = functions(case)
    for transform in (jacrev, jacfwd):
        compare(transform(ours, which)(*inputs), transform(theirs, which)(*inputs))
    compare(jacrev(ours, which, chunk_size=2)(*inputs), jacrev(theirs, which)(*inputs))


@every_op
def test_no_elements(case):
    for m in (3, 0):
        idx = torch.empty(0, dtype=torch.int32)
        inputs = case.inputs(0, m)
        which = tuple(range(len(inputs)))
        for transform in (jacrev, jacfwd):
            ours, theirs = (transform(f, which)(*inputs) for f in functions(case, idx, m))
            compare(ours, theirs)
        ours, theirs = (grad(lambda *a, f=f: f(*a).sum(), which)(*inputs) for f in functions(case, idx, m))
        compare(ours, theirs)
        batched = [torch.stack([a, a]) for a in inputs]
        compare(*(vmap(f)(*batched) for f in functions(case, idx, m)))
        tangents = tuple(map(torch.ones_like, inputs))
        compare(*(jvp(f, tuple(inputs), tangents) for f in functions(case, idx, m)))


@over((torch.float64,), (torch.int32,), widths=1)
def test_tangents_of_linear_ops_have_their_bits(case):
    """Forward mode of float32 is rounded from a float64 sum, too."""
    if not case.op.linear or len(case.op.args) > 1:
        pytest.skip("not linear")
    x = torch.full((4097, 3), 0.1)
    idx = torch.zeros(4097, dtype=torch.int32)
    for transform in (
        lambda f: jvp(f, (torch.zeros_like(x),), (x,))[1],
        lambda f: vmap(f)(x[None])[0],
        lambda f: linearize(f, torch.zeros_like(x))[1](x),
    ):
        found = transform(lambda x: case(x, idx, 1))
        assert same_bits(found, case(x, idx, 1))


@over((torch.float32, torch.float16, torch.bfloat16), (torch.int32,), widths=1)
def test_tangents_keep_the_accuracy(case):
    """Forward mode is rounded from a float64 sum, too: of the op, and of its gradients, which are sums of products."""
    n, m = 4097, 2
    idx = (torch.arange(n) >= n // 2).int()
    inputs, tangents = case.inputs(n, m), case.random(case.op.args, n, m, seed=5)
    w = case.weights(n, m).double()
    which = tuple(range(len(inputs)))

    def gradient(f):
        return grad(lambda *a: (f(*a, idx, m) * w).sum(), which)

    wide = [tuple(a.double() for a in pair) for pair in (inputs, tangents)]
    for ours, theirs, eps in (
        (lambda *a: case(*a, idx, m), lambda *a: case.composed(*a, idx, m), 0.51 if case.op.linear else 1),
        (gradient(case), gradient(case.composed), 2),  # a weight, and what was rounded before the gradient
    ):
        expected = jvp(theirs, *wide)[1]
        for found in (jvp(ours, tuple(inputs), tuple(tangents))[1], linearize(ours, *inputs)[1](*tangents)):
            for a, b in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (found, expected)), strict=True):
                assert a.dtype == case.dtype
                smallest = torch.finfo(case.dtype).tiny * case.eps
                assert ((a.double() - b).abs() <= eps * case.eps * b.abs() + smallest + 1e-8).all()


@pytest.mark.parametrize("n", [1_000_000, 8_000_000, 40_000_000])
def test_tangents_of_very_many(n):
    """1 / n is hardly a number of float16, or none."""
    x, idx = torch.ones(n, dtype=torch.float16), torch.zeros(n, dtype=torch.int32)
    for op in (segmented_rms_norm, segmented_mean):
        assert jvp(lambda x, op=op: op(x, idx, 1), (x,), (x,))[1].item() == 1


def test_tangents_of_sums_that_overflow_in_parts():
    """float16 holds the sum, but not its terms."""
    idx = torch.zeros(2, dtype=torch.int32)
    large, parts = torch.full((2, 1), 300.0).half(), torch.tensor([[300.0], [299.0]]).half()
    matrix = torch.full((1, 1, 1), 300.0).half()

    def gradients(v, a, g):
        return vjp(lambda v, a: segmented_matvec(v, a, idx, 1), v, a)[1](g)

    found = jvp(gradients, (large, matrix, large), (-parts, -matrix, parts))[1]
    assert [t.flatten().tolist() for t in found] == [[0, -300], [0]]


NORMS = [segmented_rms_norm, segmented_max_norm]


@pytest.mark.parametrize("transform", ["jvp", "vmap", "dual", "second", "reverse"])
def test_infinite_tangents_where_there_is_no_gradient(transform):
    """An element that is not the maximum has none, whatever its tangent is: 0 times inf is NaN."""
    idx, d, one = torch.tensor([0, 0], dtype=torch.int32), torch.tensor([0.0, 25.0]), torch.ones(2)

    def function(d):
        return segmented_max_norm(d.sqrt(), idx, 1)

    def tangent(d):
        return jvp(function, (d,), (one,))[1]

    if transform == "jvp":
        found = tangent(d)
    elif transform == "vmap":
        found = vmap(lambda t: jvp(function, (d,), (t,))[1])(torch.stack([one, 2 * one]))[:, 0] / torch.tensor([1, 2])
    elif transform == "dual":
        with fw.dual_level():
            found = fw.unpack_dual(function(fw.make_dual(d, one))).tangent
    elif transform == "second":
        assert_close(jvp(tangent, (d,), (one,))[1], torch.tensor([-0.002]))
        return
    else:
        assert_close(grad(lambda d: tangent(d).sum())(d)[1], torch.tensor(-0.002), rtol=1e-6)
        return
    assert_close(found, torch.full_like(found, 0.1))


@pytest.mark.parametrize("op", NORMS)
def test_infinite_tangents_of_zeros(op):
    """At a segment of zeros the derivatives are 0."""
    idx, x = torch.tensor([0, 0, 1], dtype=torch.int32), torch.tensor([0.0, 0.0, 4.0])
    found = jvp(lambda x: op(x.sqrt(), idx, 2), (x,), (torch.ones(3),))[1]
    assert_close(found, torch.tensor([0.0, 0.25]))


# ------------------------------------------------------------------ vmap
@every_op
def test_vmap_over_every_subset(case):
    """Each of the arrays and idx batched or not, in front or behind."""
    indices = torch.stack([IDX, OTHER, IDX.clamp(max=1)])
    batched, plain = data(case, 3), data(case)
    for subset in itertools.product([False, True], repeat=len(plain) + 1):
        if not any(subset):
            continue
        inputs = [b if s else p for b, p, s in zip(batched, plain, subset, strict=False)]
        idx = indices if subset[-1] else IDX
        dims = tuple(0 if s else None for s in subset)
        f, r = ((lambda *a, g=g: g(*a, M)) for g in (case, case.composed))
        compare(vmap(f, dims)(*inputs, idx), vmap(r, dims)(*inputs, idx))
        behind = tuple(-1 if s else None for s in subset)
        moved = [a.movedim(0, -1) if s else a for a, s in zip([*inputs, idx], subset, strict=True)]
        compare(vmap(f, behind, -1)(*moved), vmap(r, behind, -1)(*moved))


@every_op
def test_vmap_of_derivatives(case):
    indices = torch.stack([IDX, OTHER])
    batched = data(case, 2)
    which = tuple(range(len(batched)))
    w = case.weights(N, M)
    for transform in (grad, jacrev, jacfwd, hessian):
        ours, theirs = (
            vmap(transform(lambda *a, f=f: (f(*a, M).sin() * w).sum(), which))(*batched, indices)
            for f in (case, case.composed)
        )
        compare(ours, theirs)
    for transform in (grad, hessian):
        compare(*(vmap(transform(f, which))(*batched) for f in losses(case)))


@every_op
def test_nested_vmap(case):
    inputs = data(case, 3, 2)
    compare(*(vmap(vmap(f))(*inputs) for f in functions(case)))
    compare(*(vmap(vmap(f, -1, -1), 0)(*[a.movedim(1, -1) for a in inputs]) for f in functions(case)))
    indices = torch.stack([IDX, OTHER])
    batched = data(case, 3)
    for f in (lambda g: vmap(lambda *a: vmap(lambda i: g(*a, i, M))(indices))(*batched),
              lambda g: vmap(lambda i: vmap(lambda *a: g(*a, i, M))(*batched))(indices)):  # fmt: skip
        compare(f(case), f(case.composed))


@every_op
def test_vmap_of_nothing_of_ours(case):
    plain = data(case)
    f, r = functions(case)
    scales = torch.arange(3.0, dtype=torch.float64)
    compare(vmap(lambda s: f(*plain) * s)(scales), vmap(lambda s: r(*plain) * s)(scales))
    compare(vmap(lambda s: f(*[a * s for a in plain]))(scales), vmap(lambda s: r(*[a * s for a in plain]))(scales))
    batched = data(case, 5)
    compare(vmap(f, chunk_size=2)(*batched), vmap(r)(*batched))


@every_op
def test_vmap_over_padded_indices(case):
    """Nothing is checked under vmap over idx: elements out of range belong to no segment, NaN or not."""
    m = 3
    indices = torch.tensor([[-1, 0, 0, 1, 2, 3, 3, 9], [0, 0, 0, 0, 1, 1, 1, 2]], dtype=torch.int32)
    batched = case.inputs(N, m), case.inputs(N, m, seed=1)
    inputs = [torch.stack(a) for a in zip(*batched, strict=True)]
    outside = (indices < 0) | (indices >= m)
    for a, kind in zip(inputs, case.op.args, strict=True):
        if kind.kind == "element":
            a[outside] = float("nan")
    out = vmap(lambda *a: case(*a, m))(*inputs, indices)
    w = case.weights(N, m)
    grads = vmap(grad(lambda *a: (case(*a, m) * w).sum(), tuple(range(len(inputs)))))(*inputs, indices)
    for k in range(2):
        real = ~outside[k]
        pairs = zip(inputs, case.op.args, strict=True)
        own = [a[k][real] if kind.kind == "element" else a[k] for a, kind in pairs]
        idx = indices[k][real]
        v = w if case.op.reduces else w[real]
        expected = case.composed(*own, idx, m)
        gradients = grad(lambda *a, idx=idx, v=v: (case.composed(*a, idx, m) * v).sum(), tuple(range(len(own))))(*own)
        if case.op.reduces:
            compare(out[k], expected)
        else:
            compare(out[k][real], expected)
            assert (out[k][outside[k]] == 0).all()
        for g, e, kind in zip(grads, gradients, case.op.args, strict=True):
            if kind.kind == "element":
                assert (g[k][outside[k]] == 0).all()
                compare(g[k][real], e)
            else:
                compare(g[k], e)


STACKED = {
    "vmap": lambda f, a, t: vmap(lambda x: f(x, *a[1:]))(torch.stack([a[0], 2 * a[0]])),
    "vmap, last axis": lambda f, a, t: vmap(f, -1)(*[torch.stack([x, 2 * x], -1) for x in a]),
    "jvp": lambda f, a, t: jvp(f, a, t),
    "vjp": lambda f, a, t: (lambda out, pull: pull(tree_map_only(torch.Tensor, _seed, out)))(*vjp(f, *a)),
    "jacfwd": lambda f, a, t: jacfwd(f)(*a),
    "jacrev": lambda f, a, t: jacrev(f)(*a),
}


def _seed(a):
    return _seeds([a])[0]


@every_op
@pytest.mark.parametrize("batch", ["innermost", "outermost"])
@pytest.mark.parametrize("inner", STACKED)
def test_nan_padding_under_two_transforms(case, inner, batch):
    """Elements out of range have data and tangents of NaN; in the composition 0, and a segment of their own."""
    m = 3
    indices = torch.tensor([[0, 0, 1, 2, 2, 3, 3, 3], [-1, 0, 0, 0, 1, 1, 3, 9]], dtype=torch.int32)
    outside = (indices < 0) | (indices >= m)
    kinds = [kind.kind == "element" for kind in case.op.args]

    def op(idx, *a):
        return case(*a, idx, m)

    def composed(idx, *a):
        last = [x if element else torch.cat([x, x[:1] * 0]) for x, element in zip(a, kinds, strict=True)]
        out = case.composed(*last, torch.where((idx < 0) | (idx >= m), m, idx), m + 1)
        return out[:m] if case.op.reduces else out

    def padded(fill, seed):
        """Inputs or tangents of both samples."""
        both = zip(*(case.inputs(N, m, seed + k) for k in range(2)), strict=True)
        for a, element in zip(map(torch.stack, both), kinds, strict=True):
            yield torch.where(outside.view(2, -1, *[1] * (a.dim() - 2)), fill, a) if element else a

    def results(f, fill, outer):
        arrays, tangents = padded(fill, 0), tuple(padded(fill, 2))
        if batch == "innermost":
            return STACKED[outer](
                lambda *a: STACKED[inner](lambda *a: vmap(f)(indices, *a), a, tangents), tuple(arrays), tangents
            )

        def one(idx, a, t):
            return STACKED[outer](lambda *a: STACKED[inner](lambda *a: f(idx, *a), a, t), a, t)

        return vmap(one)(indices, tuple(arrays), tangents)

    for outer in STACKED:
        compare(results(op, float("nan"), outer), results(composed, 0.0, outer))


# ------------------------------------------------------------------ forward mode by dual tensors
@two_widths
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("no_grad", [False, True])
def test_dual_tensors(case, requires_grad, no_grad):
    def run(f):
        inputs = [a.clone().requires_grad_(requires_grad) for a in data(case)]
        with fw.dual_level(), torch.no_grad() if no_grad else contextlib.nullcontext():
            y = f(*map(fw.make_dual, inputs, _seeds(inputs)))
            primal, tangent = fw.unpack_dual(y)
            assert tangent is not None, "a tangent was lost"
            found = [primal.detach(), tangent.detach()]
            if requires_grad and not no_grad:
                found += torch.autograd.grad(tangent, inputs)
        return found

    compare(*map(run, losses(case)))


@every_op
def test_dual_tensors_of_one_argument(case):
    inputs = data(case)
    for which in range(len(inputs)):

        def run(f, which=which):
            with fw.dual_level():
                arrays = list(inputs)
                arrays[which] = fw.make_dual(inputs[which], _seeds(inputs)[which])
                return [a.detach() for a in fw.unpack_dual(f(*arrays))]

        compare(*map(run, losses(case)))


@every_op
def test_dual_tensors_through_a_backward(case):
    """Reverse mode first, tangents through it."""

    def run(f):
        inputs = requiring_grad(data(case))
        with fw.dual_level():
            duals = list(map(fw.make_dual, inputs, _seeds(inputs)))
            grads = torch.autograd.grad(f(*duals), duals, create_graph=True)
            return [[a.detach() for a in fw.unpack_dual(g)] for g in grads]

    compare(*map(run, losses(case)))


@every_op
def test_gradcheck_in_every_mode(case):
    idx = make_index((3, 0, 2))
    inputs = case.inputs(5, 3, grad=True)
    f = lambda *a: case(*a, idx, 3)  # noqa: E731
    assert torch.autograd.gradcheck(
        f, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(
        f, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


def test_tangents_of_the_first_empty_segments():
    """Case 1 of the field, by dual tensors."""
    idx = torch.tensor([0, 0, 2, 2, 2], dtype=torch.int32)
    x = torch.arange(5.0)
    with fw.dual_level():
        tangent = fw.unpack_dual(segmented_mean(fw.make_dual(x, torch.ones(5)), idx, 3)).tangent
        assert tangent.tolist() == [1.0, 0.0, 1.0]


# ------------------------------------------------------------------ the older functional API
@every_op
@pytest.mark.parametrize("options", [{}, {"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}], ids=str)
def test_functional_jacobian(case, options):
    jacobian = torch.autograd.functional.jacobian
    compare(*(jacobian(f, tuple(data(case)), **options) for f in functions(case)))


@every_op
@pytest.mark.parametrize(
    "options", [{}, {"vectorize": True}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}], ids=str
)
def test_functional_hessian(case, options):
    compare(*(torch.autograd.functional.hessian(f, tuple(data(case)), **options) for f in losses(case)))


@every_op
def test_functional_products(case):
    inputs = tuple(data(case))
    for product in (torch.autograd.functional.hvp, torch.autograd.functional.vhp, torch.autograd.functional.jvp):
        compare(*(product(f, inputs, _seeds(inputs)) for f in losses(case)))


@every_op
def test_batched_gradients(case):
    def run(f):
        inputs = requiring_grad(data(case))
        y = f(*inputs)
        v = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
        return torch.autograd.grad(y, inputs, v, is_grads_batched=True)

    compare(*map(run, functions(case)))

    def second(f):
        inputs = requiring_grad(data(case))
        grads = torch.autograd.grad(f(*inputs), inputs, create_graph=True)
        v = [torch.stack([s, s * 2, s.sin()]) for s in _seeds(grads)]
        return torch.autograd.grad(grads, inputs, v, is_grads_batched=True, allow_unused=True)

    compare(*map(second, losses(case)))


# ------------------------------------------------------------------ transforms and plain autograd together
@every_op
def test_outer_autograd(case):
    def through_vmap(f):
        inputs = requiring_grad(data(case, 3))
        (sum(g.pow(2).sum() for g in vmap(grad(f, tuple(range(len(inputs)))))(*inputs))).backward()
        return [a.grad for a in inputs]

    def through_forward_over_reverse(f):
        inputs = requiring_grad(data(case))
        jacfwd(grad(f))(*inputs).pow(2).sum().backward()
        return [a.grad if a.grad is not None else torch.zeros_like(a) for a in inputs]

    def closed_over(f):
        inputs = requiring_grad(data(case))
        grad(lambda s: f(*[a * s for a in inputs]))(torch.tensor(1.3, dtype=torch.float64)).backward()
        return [a.grad for a in inputs]

    def of_a_batch(f):
        return grad(lambda *a: (vmap(f)(*a) ** 2).sum())(*data(case, 3))

    for run in (through_vmap, through_forward_over_reverse, closed_over, of_a_batch):
        compare(*map(run, losses(case)))


@every_op
def test_no_grad_inside_transforms(case):
    inputs = data(case)

    def run(f):
        def stopped(*a):
            with torch.no_grad():
                y = f(*a)
            return y * a[0].sum()

        return grad(stopped)(*inputs)

    compare(*map(run, losses(case)))


@every_op
def test_leaked_wrapper(case):
    """A tensor of a transform that is over."""
    leaked = []

    def leak(x):
        leaked.append(x * 2)
        return x.sum()

    inputs = data(case)
    grad(leak)(inputs[0])
    compare(case(leaked[0], *inputs[1:], IDX, M) * 1, case.composed(inputs[0] * 2, *inputs[1:], IDX, M))


# ------------------------------------------------------------------ hooks, modes, contexts
@every_op
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(case, reentrant):
    def run(f):
        inputs = requiring_grad(data(case))
        checkpoint(f, *inputs, use_reentrant=reentrant).backward()
        return [a.grad for a in inputs]

    ours, theirs = losses(case)
    inputs = requiring_grad(data(case))
    theirs(*inputs).backward()
    compare(run(ours), [a.grad for a in inputs])


@every_op
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_over_a_double_backward(case, reentrant):
    """Forces inside what is checkpointed; and, where torch can, a double backward through the checkpoint."""

    def run(f, wrap):
        def forces(*a):
            return sum((g.sin() * s).sum() for g, s in zip(second(*a), _seeds(a), strict=True))

        def second(*a):
            with torch.enable_grad():
                return torch.autograd.grad(f(*a), a, create_graph=True)

        inputs = requiring_grad(data(case))
        wrap(forces, *inputs).backward()
        found = [a.grad for a in inputs]
        if not reentrant:
            inputs = requiring_grad(data(case))
            grads = torch.autograd.grad(wrap(f, *inputs), inputs, create_graph=True)
            found += torch.autograd.grad(sum(g.sin().sum() for g in grads), inputs)
        return found

    ours, theirs = losses(case)
    compare(run(ours, lambda f, *a: checkpoint(f, *a, use_reentrant=reentrant)), run(theirs, lambda f, *a: f(*a)))


@every_op
def test_saved_tensor_hooks(case):
    packed = []

    def pack(t):
        packed.append(t)
        return t.clone()

    def run(f, hooks):
        inputs = requiring_grad(data(case))
        with hooks:
            y = f(*inputs)
            grads = torch.autograd.grad(y, inputs, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in grads), inputs)

    ours, theirs = losses(case)
    hooked = run(ours, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.clone()))
    compare(hooked, run(theirs, contextlib.nullcontext()))
    compare(run(ours, torch.autograd.graph.save_on_cpu()), hooked)
    assert packed


@every_op
def test_gradient_hooks(case):
    inputs = requiring_grad(data(case))
    seen = []
    out = case(*inputs, IDX, M)
    out.register_hook(lambda g: g * 2)
    inputs[0].register_hook(lambda g: seen.append(g.clone()))
    w = case.weights(N, M)
    out.backward(w)
    again = requiring_grad(data(case))
    case(*again, IDX, M).backward(2 * w)
    assert all(same_bits(a.grad, b.grad) for a, b in zip(inputs, again, strict=True)) and seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_op
def test_autocast(case, dtype):
    """The result has the dtype of the data, inside and outside."""
    inputs = [a.to(dtype) for a in data(case)]
    expected = case(*inputs, IDX, M)
    with torch.autocast("cpu", torch.bfloat16):
        leaves = requiring_grad(inputs)
        out = case(*leaves, IDX, M)
        out.sum().backward()
        assert same_bits(out.detach(), expected)
        assert all(a.grad.dtype == dtype for a in leaves)
        second = hessian(lambda x: case(x, *inputs[1:], IDX, M).sum())(inputs[0])
        assert second.dtype == dtype
    compare(second, hessian(lambda x: case(x, *inputs[1:], IDX, M).sum())(inputs[0]))


@every_op
def test_inference_mode(case):
    expected = case(*data(case), IDX, M)
    with torch.inference_mode():
        inputs, idx = [a.clone() for a in data(case)], IDX.clone()
        out = case(*inputs, idx, M)
        assert out.is_inference()
    assert same_bits(out, expected)
    assert same_bits(case(*inputs, idx, M), expected) and same_bits(case(*data(case), idx, M), expected)


@every_op
def test_anomaly_mode_and_profiler(case):
    def run():
        inputs = requiring_grad(data(case))
        grads = torch.autograd.grad(losses(case)[0](*inputs), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in grads), inputs)

    expected = run()
    with torch.autograd.set_detect_anomaly(True):
        assert all(map(same_bits, run(), expected))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert all(map(same_bits, run(), expected))


@every_op
def test_profiler_shows_the_operations(case):
    """By name: calls without gradients, with them, and the backward."""
    inputs = requiring_grad(data(case))
    fixed = data(case)
    case(*fixed, IDX, M)
    full = f"{NAMESPACE}::{case.op.name}"
    for activity in ({}, {"record_shapes": True}):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **activity) as seen:
            case(*fixed, IDX, M)
        assert [e.name for e in seen.events() if e.name.startswith(NAMESPACE)] == [full]
    with torch.autograd.profiler.profile() as seen:
        out = case(*inputs, IDX, M)
        torch.autograd.grad(out, inputs, torch.ones_like(out))
    names = [e.name for e in seen.function_events if e.name.startswith(NAMESPACE)]
    assert full in names and len(names) > 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as after:
        pass
    assert not [e for e in after.events() if e.name.startswith(NAMESPACE)]


@every_op
def test_deterministic_mode(case):
    """Nothing of ours is refused in it, and nothing changes."""

    def run():
        inputs = requiring_grad(data(case))
        out = case(*inputs, IDX, M)
        grads = torch.autograd.grad(out.pow(2).sum(), inputs, create_graph=True)
        return [out.detach(), *torch.autograd.grad(sum(g.pow(2).sum() for g in grads), inputs)]

    expected = run()
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN, too
    try:
        assert all(map(same_bits, run(), expected))
    finally:
        torch.use_deterministic_algorithms(False)


@every_op
def test_threads(case):
    ours, theirs = losses(case)
    data_of = [requiring_grad(data(case, seed=k)) for k in range(4)]
    wrong = []

    def work(k):
        try:
            for _ in range(5):
                grads = torch.autograd.grad(ours(*data_of[k]), data_of[k], create_graph=True)
                sum(g.pow(2).sum() for g in grads).backward()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong
    for k in range(4):
        inputs = requiring_grad(data(case, seed=k))
        grads = torch.autograd.grad(theirs(*inputs), inputs, create_graph=True)
        sum(g.pow(2).sum() for g in grads).backward()
        compare([a.grad for a in data_of[k]], [5 * a.grad for a in inputs])


def test_default_device_mode():
    """A function mode that must not change the route or the result."""
    x = torch.randn(N, 3, dtype=torch.float64, requires_grad=True)
    expected = segmented_sum(x, IDX, M)
    torch.set_default_device("cpu")
    try:
        assert same_bits(segmented_sum(x, IDX, M).detach(), expected.detach())
    finally:
        torch.set_default_device(None)


class Log(TorchDispatchMode):
    """Every operation that reaches the dispatcher."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append((function, args))
        return function(*args, **(kwargs or {}))

    @property
    def ours(self):
        return [(f, a) for f, a in self.calls if f.namespace == NAMESPACE]


@every_op
def test_modes_see_the_ops(case):
    """Forward under a mode, backward under a mode, and a mode around the backward of a plain graph."""
    w = case.weights(N, M)
    plain = requiring_grad(data(case))
    expected = torch.autograd.grad(case(*plain, IDX, M), plain, w)

    inputs = requiring_grad(data(case))
    with Log() as forward:
        out = case(*inputs, IDX, M)
    with Log() as backward:
        found = torch.autograd.grad(out, inputs, w)
    assert forward.ours and backward.ours
    assert all(map(same_bits, found, expected))
    out = case(*inputs, IDX, M)
    with Log() as later:
        found = torch.autograd.grad(out, inputs, w)
    assert later.ours and all(map(same_bits, found, expected))


@every_op
def test_flop_counter(case):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        inputs = requiring_grad(data(case))
        case(*inputs, IDX, M).sum().backward()


# ------------------------------------------------------------------ subclasses
class Plain(torch.Tensor):
    pass


class Recording(torch.Tensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs or {})


@every_op
def test_function_subclasses(case):
    inputs = data(case)
    expected = case(*inputs, IDX, M)
    out = case(inputs[0].as_subclass(Plain), *inputs[1:], IDX, M)
    assert type(out) is Plain and same_bits(out.as_subclass(torch.Tensor), expected)
    out = case(*inputs, IDX.as_subclass(Plain), M)
    assert type(out) is Plain and same_bits(out.as_subclass(torch.Tensor), expected)
    Recording.seen.clear()
    out = case(inputs[0].as_subclass(Recording), *inputs[1:], IDX, M)
    assert type(out) is Recording and any(NAMESPACE in s for s in Recording.seen)


@every_op
def test_dispatch_subclass(case):
    from torch.testing._internal.two_tensor import TwoTensor

    first, second = data(case), data(case, seed=7)
    inputs = [TwoTensor(a, b).requires_grad_() for a, b in zip(first, second, strict=True)]
    idx = TwoTensor(IDX, IDX)

    def run(f, inputs, idx):
        grads = torch.autograd.grad((f(*inputs, idx, M) ** 3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in grads), inputs)

    both = run(case, inputs, idx)
    compare([h.a for h in both], run(case.composed, requiring_grad(first), IDX))
    compare([h.b for h in both], run(case.composed, requiring_grad(second), IDX))


class Logging(torch.Tensor):
    """A wrapper without memory of its own, which notes what it is asked and asks what it wraps."""

    log: list = []

    @staticmethod
    def __new__(cls, elem):
        return torch.Tensor._make_wrapper_subclass(cls, elem.shape, strides=elem.stride(), dtype=elem.dtype)

    def __init__(self, elem):
        self.elem = elem

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.log.append(str(function))
        args = tree_map_only(cls, lambda t: t.elem, args)
        return tree_map_only(torch.Tensor, cls, function(*args, **(kwargs or {})))


@every_op
def test_logging_subclass(case):
    w = case.weights(N, M)

    def run(f, wrap):
        leaves = [wrap(a).requires_grad_() for a in data(case)]
        out = f(*leaves, wrap(IDX), M)
        return [out, *torch.autograd.grad(out, leaves, wrap(w))]

    Logging.log.clear()
    found = run(case, Logging)
    assert all(type(a) is Logging for a in found)
    assert sum(name.startswith(NAMESPACE + ".segmented_") for name in Logging.log) >= 2, Logging.log
    compare([a.elem for a in found], run(case.composed, lambda a: a))


# ------------------------------------------------------------------ tracers
@every_op
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx(case, mode, pre_dispatch):
    inputs = data(case)
    graph = make_fx(lambda *a: case(*a, M), tracing_mode=mode, pre_dispatch=pre_dispatch)(*inputs, IDX)
    names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert any(n.startswith(NAMESPACE) for n in names), names
    other = [a + 1 for a in inputs]
    compare(graph(*other, OTHER), case.composed(*other, OTHER, M))


@every_op
@pytest.mark.parametrize("order", [1, 2, 3])
def test_make_fx_of_derivatives(case, order):
    w = case.weights(N, M)

    def of(f):
        def function(idx, *inputs):
            leaves = [a.detach().requires_grad_() for a in inputs]
            y = (f(*leaves, idx, M).sin() * w).sum()
            for k in range(order):
                grads = torch.autograd.grad(y, leaves, create_graph=k + 1 < order)
                y = sum((g * s).sum() for g, s in zip(grads, _seeds(grads), strict=True))
            return y

        return function

    inputs = data(case)
    other = [a + 0.5 for a in inputs]
    for mode in ("fake", "symbolic") if order < 3 else ("symbolic",):
        graph = make_fx(of(case), tracing_mode=mode, _allow_non_fake_inputs=True)(IDX, *inputs)
        compare(graph(IDX, *other), of(case.composed)(IDX, *other))


@every_op
def test_make_fx_then_compile(case, fresh_dynamo):
    """Energy and forces traced into one graph, which is then compiled: no autograd is left in it."""
    w = case.weights(N, M)

    def of(f):
        def energy_and_forces(idx, *inputs):
            leaves = [a.detach().requires_grad_() for a in inputs]
            energy = (f(*leaves, idx, M).sin() * w).sum()
            return [energy.detach(), *torch.autograd.grad(energy, leaves)]

        return energy_and_forces

    inputs = data(case)
    graph = make_fx(of(case), tracing_mode="symbolic", _allow_non_fake_inputs=True)(IDX, *inputs)
    program = torch.compile(graph, fullgraph=True, backend="aot_eager")
    for change in (0.5, 0.0):
        other = [a + change for a in inputs]
        expected = of(case.composed)(OTHER, *other)
        compare(program(OTHER, *other), expected)
        assert all(e.abs().max() > 0 for e in expected)


@every_op
def test_make_fx_of_func(case):
    inputs = data(case)
    other = [a + 0.5 for a in inputs]
    ours, theirs = losses(case)
    graph = make_fx(hessian(ours))(*inputs)
    compare(graph(*other), hessian(theirs)(*other))
    batched = data(case, 3)
    graph = make_fx(vmap(grad(ours)), tracing_mode="symbolic", _allow_non_fake_inputs=True)(*batched)
    compare(graph(*batched), vmap(grad(theirs))(*batched))


@every_op
def test_fake_tensors(case):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    real = requiring_grad(data(case))
    with FakeTensorMode() as mode:
        inputs = list(map(mode.from_tensor, real))
        idx = mode.from_tensor(IDX)
        out = case(*inputs, idx, M)
        out.sum().backward()
    outside = case(*inputs, idx, M)  # fake tensors where the mode is over
    for y in (out, outside):
        assert isinstance(y, FakeTensor) and y.shape == case.op.out.shape(N, M, case.width) and y.dtype == case.dtype
    assert all(isinstance(a.grad, FakeTensor) and a.grad.shape == a.shape for a in inputs)


@every_op
def test_meta_tensors(case):
    inputs = [a.to("meta").requires_grad_() for a in data(case)]
    idx = IDX.to("meta")
    out = case(*inputs, idx, M)
    assert out.is_meta and out.shape == case.op.out.shape(N, M, case.width) and out.dtype == case.dtype
    out.sum().backward()
    assert all(a.grad.is_meta and a.grad.shape == a.shape for a in inputs)
    with pytest.raises(ValueError, match="1-D"):
        case(*inputs, idx[None], M)


@every_op
@pytest.mark.parametrize("strict", [False, True])
def test_export(case, strict, fresh_dynamo):
    class Module(torch.nn.Module):
        def forward(self, idx, *arrays):
            return case(*[a * 2 for a in arrays], idx, M)

    inputs = data(case)
    n = torch.export.Dim("n", min=2)
    dynamic = ({0: n}, tuple({0: n} if a.kind == "element" else None for a in case.op.args))
    program = torch.export.export(Module(), (IDX, *inputs), dynamic_shapes=dynamic, strict=strict)
    assert any(str(node.target).startswith(NAMESPACE) for node in program.graph.nodes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for p in (program, program.run_decompositions(), torch.export.load(buffer)):
        short = [a[:5] if k.kind == "element" else a for a, k in zip(inputs, case.op.args, strict=True)]
        compare(p.module()(IDX[:5], *short), case.composed(*[a * 2 for a in short], IDX[:5], M))


@every_op
def test_export_of_any_number_of_segments(case, fresh_dynamo):
    """Dynamic N and M; energy and forces in the exported program's own backward."""

    class Module(torch.nn.Module):
        def forward(self, idx, like, *arrays):
            return case(*[a * 2 for a in arrays], idx, like.shape[0])

    n, m = torch.export.Dim("n", min=2), torch.export.Dim("m", min=2)
    dims = tuple({0: n if a.kind == "element" else m} for a in case.op.args)
    program = torch.export.export(Module(), (IDX, torch.zeros(M), *data(case)), dynamic_shapes=({0: n}, {0: m}, dims))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for lengths in ((3, 0, 2), (1, 1, 0, 4, 2, 0, 6)):
        idx = make_index(lengths)
        inputs = case.inputs(len(idx), len(lengths))
        ours, theirs = requiring_grad(inputs), requiring_grad(inputs)
        w = case.weights(len(idx), len(lengths))
        a = loaded(idx, torch.zeros(len(lengths)), *ours)
        b = case.composed(*[x * 2 for x in theirs], idx, len(lengths))
        compare([a, *torch.autograd.grad(a, ours, w)], [b, *torch.autograd.grad(b, theirs, w)])


@every_op
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("given", ["argument", "item"])
def test_export_with_a_dynamic_num_segments(case, given, strict, fresh_dynamo):
    """num_segments as an argument of the program, or from a tensor."""

    class Module(torch.nn.Module):
        def forward(self, idx, number, *arrays):
            m = number if given == "argument" else number.item()
            if given == "item" and not case.op.reduces:
                torch._check(m == arrays[-1].shape[0])
            return case(*arrays, idx, m)

    def number(m):
        return m if given == "argument" else torch.tensor(m)

    dynamic = torch.export.Dim.DYNAMIC
    dims = (
        {0: dynamic},
        dynamic if given == "argument" else None,
        tuple({0: dynamic} for _ in case.op.args),
    )
    program = torch.export.export(Module(), (IDX, number(M), *data(case)), dynamic_shapes=dims, strict=strict)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for lengths in ((3, 0, 2), (1, 1, 0, 4, 2, 0, 6)):
        idx = make_index(lengths)
        inputs = case.inputs(len(idx), len(lengths))
        assert same_bits(loaded(idx, number(len(lengths)), *inputs), case(*inputs, idx, len(lengths)))


@every_op
@pytest.mark.filterwarnings("ignore")
def test_jit_trace(case):
    inputs = data(case)
    traced = torch.jit.trace(lambda i, *a: case(*a, i, M), (IDX, *inputs))
    assert NAMESPACE + "::" in str(traced.graph)
    other = [a + 1 for a in inputs]
    compare(traced(OTHER, *other), case.composed(*other, OTHER, M))
    leaves, again = requiring_grad(inputs), requiring_grad(inputs)
    traced(IDX, *leaves).sum().backward()
    case.composed(*again, IDX, M).sum().backward()
    compare([a.grad for a in leaves], [a.grad for a in again])


# ------------------------------------------------------------------ torch.library.opcheck
def registered():
    names = torch._C._dispatch_get_all_op_names()
    return sorted({n.split("::")[1].split(".")[0] for n in names if n.startswith(NAMESPACE + "::")})


@pytest.fixture(scope="module")
def recorded():
    """Arguments of every op of the namespace, as the seven functions and their derivatives call them."""
    seen = {}
    for case in every_op.args[1]:
        inputs = data(case)
        with Log() as log:
            for order in (1, 2, 3):
                derivatives(lambda *a, case=case: case(*a, IDX, M), inputs, random_cotangents(case, N, M, order))
            for which in range(len(inputs)):  # gradients of one argument are another op than those of all
                leaves = [a.clone().requires_grad_(k == which) for k, a in enumerate(inputs)]
                out = case(*leaves, IDX, M)
                w = torch.ones_like(out).requires_grad_()
                (g,) = torch.autograd.grad(out, leaves[which], w, create_graph=True)
                if g.requires_grad:
                    torch.autograd.grad(g, [w, leaves[which]], torch.ones_like(g), create_graph=True, allow_unused=True)
        for function, args in log.ours:
            seen.setdefault(function._opname, (function, args))
    return seen


def test_every_op_was_recorded(recorded):
    assert registered(), "no op is registered"
    assert set(registered()) - set(recorded) == set()


@pytest.mark.parametrize("name", registered())
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(name, grad, recorded):
    if name not in recorded:
        pytest.skip("test_every_op_was_recorded says so")
    function, args = recorded[name]
    differentiable = [isinstance(a, torch.Tensor) and a.is_floating_point() for a in args]
    if grad and "norm" in name and len(args) > 3:
        # by-products of the forward are no inputs that one differentiates by
        names = [a.name for a in function._schema.arguments]
        differentiable = [d and n not in ("inv", "at") for d, n in zip(differentiable, names, strict=True)]
    arguments = tuple(
        a.detach().clone().requires_grad_(grad and d) if isinstance(a, torch.Tensor) else copy.copy(a)
        for a, d in zip(args, differentiable, strict=True)
    )
    torch.library.opcheck(function, arguments)


@over((torch.float64,), (torch.int32,), widths=1)
def test_without_single_level_functions(case, monkeypatch):
    """Where torch lacks the private name, reverse mode under functorch is a composition of torch's operations."""
    from segmentops.torch import _compat

    idx, m = case.index((3, 0, 2)), 3
    inputs = case.inputs(len(idx), m)

    def energy(*inputs):
        return case(*inputs, idx, m).sin().sum()

    expected = grad(energy)(*inputs)
    monkeypatch.setattr(_compat, "single_level", None)
    assert expected.abs().max() > 0
    assert_close(grad(energy)(*inputs), expected)
