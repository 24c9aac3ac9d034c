# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True): forward, backward, dynamic shapes, transforms inside, padding.

Most cases run on aot_eager, which takes the whole path but the code generator; the few on Inductor cost seconds.
"""

import logging
import os
import shutil

import compositions
import pytest
import torch
from oracles import OPS
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad as fw
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint
from torch_battery import DTYPES, Case, assert_close, every_op, every_op_and_dtype, make_index, same_bits

from segmentops.torch import segment_ops

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]

N, M = 8, 5
IDX = make_index((3, 2, 0, 2, 1))
OLD = torch.__version__ < "2.9"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
INDUCTOR = pytest.param("inductor", marks=pytest.mark.skipif(not COMPILER, reason="no C++ compiler"))
both_backends = pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def leaves(inputs):
    return [a.detach().clone().requires_grad_() for a in inputs]


def batch(case, n, m, seed=0):
    """Inputs of n elements and an idx over m segments, the second one empty."""
    idx = torch.arange(n).mul(m).div(n, rounding_mode="floor")
    idx[idx == 1] = 0
    return case.inputs(n, m, seed), idx.to(case.index_dtype)


def loss(function, w):
    return lambda *a: (function(*a) ** 3 * w).sum() + (function(*a).sin() * w).sum()


# ------------------------------------------------------------------ forward and backward
@every_op_and_dtype
def test_equals_eager_bit_for_bit(case):
    """A graph that holds only ops of ours."""
    function = compiled(lambda idx, *a: case(*a, idx, M))
    inputs, w = case.inputs(N, M), case.weights(N, M)
    ours, eager = leaves(inputs), leaves(inputs)
    out, expected = function(IDX, *ours), case(*eager, IDX, M)
    assert same_bits(out.detach(), expected.detach())
    out.backward(w)
    expected.backward(w)
    assert all(same_bits(a.grad, b.grad) for a, b in zip(ours, eager, strict=True))
    assert all((a.grad != 0).any() for a in ours)
    with torch.no_grad():
        assert same_bits(function(IDX, *inputs), expected.detach())


@every_op
@pytest.mark.parametrize("dynamic", [None, True])
def test_dynamic_elements_and_segments(case, dynamic):
    """N and M change from call to call: one graph for the first call, one for all others."""
    counter = CompileCounterWithBackend("aot_eager")

    def function(idx, like, *a):
        return (case(*[b * 2 for b in a], idx, like.shape[0]).sin() * 0.7).sum()

    program = compiled(function, counter, dynamic=dynamic)
    for n, m in ((8, 5), (12, 7), (30, 9), (9, 4), (64, 20)):
        inputs, idx = batch(case, n, m)
        ours, theirs = leaves(inputs), leaves(inputs)
        a = program(idx, torch.zeros(m), *ours)
        b = (case.composed(*[t * 2 for t in theirs], idx, m).sin() * 0.7).sum()
        a.backward()
        b.backward()
        assert_close(a, b)
        for x, y in zip(ours, theirs, strict=True):
            assert_close(x.grad, y.grad)
    assert counter.frame_count <= 2


@every_op
def test_num_segments_from_the_data(case):
    """num_segments by item(): a symbol without a value."""
    if OLD and not case.op.reduces:
        pytest.skip("torch 2.8 loses torch._check(m == n) between Dynamo and AOTAutograd")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):

        def function(idx, number, *a):
            m = number.item()
            torch._check(m >= 0)
            if not case.op.reduces:
                torch._check(m == a[-1].shape[0])
            return case(*a, idx, m)

        program = compiled(function)
        for m in (5, 7) if case.op.reduces else (5,):
            inputs, idx = batch(case, N, m)
            assert same_bits(program(idx, torch.tensor(m), *inputs), case(*inputs, idx, m))


@every_op
@pytest.mark.skipif(OLD, reason="torch 2.8 loses what is checked between Dynamo and AOTAutograd")
def test_slices_by_a_number_from_the_data(case):
    """Sizes that are symbols without values agree, forward and backward; where they do not, the program raises."""

    def function(idx, n, m, more, *a):
        n, m = n.item(), m.item()
        a = [b[:n] if array.kind == "element" else b[:m] for b, array in zip(a, case.op.args, strict=True)]
        return case(*a, idx[:n], m + more.item())

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        program, zero, one = compiled(function), torch.tensor(0), torch.tensor(1)
        for n, m in ((6, 4), (N, M), (3, 1)):
            number, inputs, w = torch.tensor([n, m]), case.inputs(N, M), case.weights(n, m)
            ours, eager = leaves(inputs), leaves(inputs)
            out, expected = program(IDX, *number, zero, *ours), function(IDX, *number, zero, *eager)
            assert same_bits(out.detach(), expected.detach())
            found, right = torch.autograd.grad(out, ours, w), torch.autograd.grad(expected, eager, w)
            assert all(map(same_bits, found, right))
        if not case.op.reduces:
            with pytest.raises(Exception, match="Runtime assertion|must have a row per segment"):
                program(IDX, torch.tensor(6), torch.tensor(4), one, *inputs)


@pytest.mark.parametrize("backend", [INDUCTOR])
def test_checkpoint_and_the_cache(backend, caplog, tmp_path, monkeypatch):
    """AOTAutograd can save the graph of a checkpoint with our ops in it: nothing to say in its log."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def block(x, s, idx, like):
        m = like.shape[0]
        y = segment_ops.segmented_mul(x.sin(), segment_ops.segmented_rms_norm(x, idx, m) * s, idx, m)
        return segment_ops.segmented_sum(y, idx, m)

    def function(*args):
        return checkpoint(block, *args, use_reentrant=False).sum()

    x, s, like = torch.randn(N, 3), torch.randn(M), torch.zeros(M)
    counters = torch._dynamo.utils.counters
    counters.clear()
    logger = logging.getLogger("torch")
    logger.addHandler(caplog.handler)
    try:
        ours, eager = leaves([x, s]), leaves([x, s])
        compiled(function, backend)(*ours, IDX, like).backward()
        function(*eager, IDX, like).backward()
        for a, b in zip(ours, eager, strict=True):
            assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    finally:
        logger.removeHandler(caplog.handler)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]
    assert said == []
    found = counters["aot_autograd"]
    assert found["autograd_cache_bypass"] == 0 and found["autograd_cache_saved"] == 1, found


@every_op
def test_one_node(case):
    """The tracer sees one operation, not what it is made of."""
    seen = []

    def backend(graph, example):
        targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        seen.extend(s for s in targets if "_check_value" not in s)  # torch 2.8 keeps what it has evaluated
        return graph

    compiled(lambda *a: case(*a, IDX, M), backend)(*case.inputs(N, M))
    ours = [s for s in seen if s.startswith("segmentops")]
    assert len(ours) == 1 and len(seen) <= 1 + sum("getitem" in s for s in seen), seen


@every_op
def test_no_elements(case):
    for m in (3, 0):
        idx = torch.empty(0, dtype=torch.int32)
        ours = leaves(case.inputs(0, m))
        out = compiled(lambda idx, *a, m=m: case(*a, idx, m))(idx, *ours)
        assert out.shape == case.op.out.shape(0, m, case.width) and (out == 0).all()
        out.sum().backward()
        assert all((a.grad == 0).all() and a.grad.shape == a.shape for a in ours)


@every_op
def test_layouts(case):
    """Expanded, transposed and sliced tensors inside the graph."""

    def function(f, *a):
        first = torch.stack([a[0], a[0] + 1], -1)[..., 0]
        rest = [b.transpose(-1, -2).contiguous().transpose(-1, -2) if b.dim() > 1 else b for b in a[1:]]
        return f(first, *rest, IDX, M).flip(0)

    inputs, w = case.inputs(N, M), case.weights(N, M)
    ours, theirs = leaves(inputs), leaves(inputs)
    compiled(lambda *a: function(case, *a))(*ours).backward(w)
    function(case.composed, *theirs).backward(w)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.grad, b.grad)


@every_op
def test_wrong_arguments_raise_while_tracing(case):
    inputs = case.inputs(N, M)
    with pytest.raises(Exception, match="Observed exception" if OLD else "idx|int32"):
        compiled(lambda *a: case(*a, IDX.double(), M))(*inputs)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Observed exception" if OLD else "num_segments|idx|shape"):
        compiled(lambda *a: case(*a, IDX[:4], M))(*inputs)


# ------------------------------------------------------------------ padding
@every_op
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_padding(case, dtype):
    """idx out of range: no segment's element. Ignored by reductions, 0 elsewhere, also where its data are NaN."""
    info = torch.iinfo(dtype)
    inner = IDX.to(dtype)
    idx = torch.cat([inner.new_tensor([info.min, -1]), inner, inner.new_tensor([M, M, M + 7, info.max])])
    real = slice(2, 2 + N)
    inputs, w = case.inputs(len(idx), M), case.weights(len(idx), M)
    for a, array in zip(inputs, case.op.args, strict=True):
        if array.kind == "element":
            a[:2], a[real.stop :] = float("nan"), float("inf")
    ours = leaves(inputs)
    out = compiled(lambda idx, *a: case(*a, idx, M))(idx, *ours)
    out.backward(w)
    own = leaves([a[real] if array.kind == "element" else a for a, array in zip(inputs, case.op.args, strict=True)])
    expected = case(*own, inner, M)
    expected.backward(w if case.op.reduces else w[real])
    pairs = [(out.detach(), expected.detach(), case.op.out)]
    pairs += [(a.grad, b.grad, array) for a, b, array in zip(ours, own, case.op.args, strict=True)]
    for a, b, array in pairs:
        if array.kind == "element":
            assert (a[:2] == 0).all() and (a[real.stop :] == 0).all()
            a = a[real]
        assert same_bits(a, b)


@every_op
def test_padding_under_forward_mode(case):
    """There the graph is a composition of ATen ops, which masks first."""
    idx = torch.cat([IDX.new_tensor([-1]), IDX, IDX.new_tensor([M, M + 3])])
    inputs, tangents = case.inputs(len(idx), M), case.inputs(len(idx), M, seed=3)
    for a, t, array in zip(inputs, tangents, case.op.args, strict=True):
        if array.kind == "element":
            a[0] = a[-1] = t[0] = t[-1] = float("nan")

    def forward(f, idx):
        return lambda a, t: jvp(lambda *b: f(*b, idx, M), tuple(a), tuple(t))

    def rows(arrays):
        pairs = zip(arrays, case.op.args, strict=True)
        return [a[1:-2] if array.kind == "element" else a for a, array in pairs]

    def reverse(f, idx):
        total = lambda a, t: sum((o.sin() * o).sum() for o in forward(f, idx)(a, t))  # noqa: E731
        return lambda a, t: grad(total)(list(a), t)

    found = compiled(forward(case, idx))(inputs, tangents)
    expected = forward(case.composed, IDX)(rows(inputs), rows(tangents))
    kinds = [case.op.out] * 2 + list(case.op.args)
    found += tuple(compiled(reverse(case, idx))(inputs, tangents))
    expected += tuple(reverse(case.composed, IDX)(rows(inputs), rows(tangents)))
    for a, b, array in zip(found, expected, kinds, strict=True):
        if array.kind == "element":
            assert (a[0] == 0).all() and (a[-2:] == 0).all()
            a = a[1:-2]
        assert_close(a, b)


# ------------------------------------------------------------------ derivatives inside the graph
TRANSFORMS = {
    "grad": grad,
    "hessian": hessian,
    "jacrev": jacrev,
    "jvp": lambda f: lambda x: jvp(f, (x,), (x.cos(),)),
    "vmap_grad": lambda f: lambda x: vmap(grad(f))(torch.stack([x, x.sin()])),
}


@every_op
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms_inside(case, transform):
    x, *rest = case.inputs(N, M)
    w = case.weights(N, M)

    def of(f):
        return transform(loss(lambda x: f(x, *rest, IDX, M), w))

    found, expected = compiled(of(case))(x), of(case.composed)(x)
    for a, b in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert_close(a, b)


MORE = {
    "vjp": lambda f: lambda x: vjp(f, x)[1](torch.tensor(1.5, dtype=x.dtype))[0],
    "jacfwd": jacfwd,
    "jacrev_of_grad": lambda f: jacrev(grad(f)),
    "vmap": lambda f: lambda x: (
        vmap(f, chunk_size=2)(torch.stack([x, x + 1, x + 2])),
        vmap(f, -1)(torch.stack([x, x + 1], -1)),
        vmap(vmap(f))(torch.stack([x, x + 1])[None]),
    ),
    "grad_and_value": grad_and_value,
    "checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=False),
}


@pytest.mark.parametrize("transform", MORE.values(), ids=MORE.keys())
def test_more_transforms_inside(transform):
    """Of three kinds of ops in one graph. Dynamo takes no `linearize` and no `functionalize`, of any operation."""
    cases = every_op.args[1][::3]
    rest, weights = [c.inputs(N, M)[1:] for c in cases], [c.weights(N, M) for c in cases]

    def of(functions):
        def energy(x):
            terms = zip(functions, rest, weights, strict=True)
            return sum((f(x, *others, IDX, M).sin() * w).sum() for f, others, w in terms)

        return transform(energy)

    x = cases[0].inputs(N, M)[0]
    ours, theirs = leaves([x, x]) if transform is MORE["checkpoint"] else (x, x)
    found = compiled(of([getattr(segment_ops, c.op.name) for c in cases]))(ours)
    expected = of([getattr(compositions, c.op.name) for c in cases])(theirs)
    for a, b in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert_close(a, b)
    if ours.requires_grad:
        assert_close(torch.autograd.grad(found, ours), torch.autograd.grad(expected, theirs))


@every_op
def test_vmap_over_indices_inside(case):
    inputs = case.inputs(N, M)
    indices = torch.stack([IDX, make_index((1, 0, 4, 0, 3))])
    found = compiled(vmap(lambda i: case(*inputs, i, M)))(indices)
    assert_close(found, vmap(lambda i: case.composed(*inputs, i, M))(indices))


@every_op
def test_dual_level_inside(case):
    inputs = case.inputs(N, M)
    w = case.weights(N, M)

    def of(f):
        def function(*a):
            with fw.dual_level():
                y = loss(lambda *b: f(*b, IDX, M), w)(*[fw.make_dual(b, b * 2) for b in a])
                return fw.unpack_dual(y).tangent

        return function

    assert_close(compiled(of(case))(*inputs), of(case.composed)(*inputs))


needs_traced_grad = pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch cannot trace autograd.grad"
)


@needs_traced_grad
@every_op
def test_forces_inside_loss_outside(case):
    """autograd.grad with a graph inside the compiled function: its backward is the second derivative."""
    inputs, w = case.inputs(N, M), case.weights(N, M)
    energy = {f: loss(lambda *a, f=f: f(*a, IDX, M), w) for f in (case, case.composed)}

    def of(f):
        def function(*a):
            forces = torch.autograd.grad(energy[f](*a), a, create_graph=True)
            return sum((force.sin() * (k + 1)).sum() for k, force in enumerate(forces))

        return function

    ours, theirs = leaves(inputs), leaves(inputs)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        a = compiled(of(case))(*ours)
    b = of(case.composed)(*theirs)
    assert_close(a, b)
    a.backward()
    b.backward()
    for x, y in zip(ours, theirs, strict=True):
        assert_close(x.grad, y.grad)


FORCES = {
    "of an intermediate": lambda e: lambda x: (y := x * 1.5, torch.autograd.grad(e(y), y, create_graph=True)[0])[1],
    "and a product with the Hessian": lambda e: lambda x: torch.autograd.grad(
        torch.autograd.grad(e(x), x, create_graph=True)[0].sin().sum(), x, create_graph=True
    )[0],
    "without a graph": lambda e: lambda x: (y := e(x), torch.autograd.grad(y, x)[0] + y.detach())[1],
}


@needs_traced_grad
@pytest.mark.parametrize("way", FORCES.values(), ids=FORCES.keys())
def test_autograd_inside(way):
    """What the guide says that torch can: three kinds of ops in one energy."""
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def of(ops):
        def energy(x):
            scaled = ops.segmented_mul(x, ops.segmented_rms_norm(x, IDX, M), IDX, M)
            return ops.segmented_dot(scaled, x.sin(), IDX, M).square().sum()

        return way(energy)

    ours, theirs = leaves([x, x])
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = compiled(of(segment_ops))(ours)
    expected = of(compositions)(theirs)
    assert_close(found, expected)
    assert expected.abs().max() > 1e-3 and found.requires_grad == (way is not FORCES["without a graph"])
    if found.requires_grad:
        w = x.cos()
        assert_close(torch.autograd.grad(found, ours, w)[0], torch.autograd.grad(expected, theirs, w)[0])


@needs_traced_grad
def test_autograd_inside_without_the_switch():
    """An error that names it."""
    x = torch.ones(N, requires_grad=True)

    def forces(x):
        return torch.autograd.grad(segment_ops.segmented_sum(x**2, IDX, M).sum(), x, create_graph=True)[0]

    with pytest.raises(torch._dynamo.exc.Unsupported, match="trace_autograd_ops"):
        compiled(forces)(x)


@every_op
def test_transforms_of_compiled_functions(case):
    inputs, w = case.inputs(N, M), case.weights(N, M)
    ours, theirs = (loss(lambda *a, f=f: f(*a, IDX, M), w) for f in (case, case.composed))
    assert_close(grad(torch.compile(ours, backend="aot_eager"))(*inputs), grad(theirs)(*inputs))


@every_op
def test_compiled_autograd(case):
    """Only the backward is compiled."""
    ours, theirs = leaves(case.inputs(N, M)), leaves(case.inputs(N, M))
    w = case.weights(N, M)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss(lambda *a: case(*a, IDX, M), w)(*ours).backward()
    loss(lambda *a: case.composed(*a, IDX, M), w)(*theirs).backward()
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.grad, b.grad)


# ------------------------------------------------------------------ models, and Inductor
@both_backends
def test_energy_and_forces(backend):
    """Case 9 of the field: compiled energies and forces equal the eager ones, and are far from zero."""
    weights = torch.randn(M, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def energy(ops, x, idx, m):
        centred = x - ops.segmented_mean(x, idx, m)[idx]
        gyration = ops.segmented_rms_norm(centred, idx, m)
        turned = ops.segmented_matvec(centred, ops.segmented_sum(x[:, :, None] * x[:, None, :], idx, m), idx, m)
        scaled = ops.segmented_mul(turned, gyration + ops.segmented_max_norm(x, idx, m), idx, m)
        return ops.segmented_dot(scaled, x.sin(), idx, m) + gyration

    program = compiled(lambda x, idx, like: energy(segment_ops, x, idx, like.shape[0]), backend, dynamic=True)
    for seed, lengths in enumerate([(3, 2, 0, 2, 4), (5, 0, 4, 4, 4)]):
        idx = make_index(lengths)
        x = torch.randn(len(idx), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found = []
        for function in (
            lambda x, idx=idx: program(x, idx, torch.zeros(M)),
            lambda x, idx=idx: energy(segment_ops, x, idx, M),
            lambda x, idx=idx: energy(compositions, x, idx, M),
        ):
            leaf = x.clone().requires_grad_()
            e = function(leaf)
            (force,) = torch.autograd.grad(e, leaf, weights)
            found.append((e.detach(), -force))
        for e, force in found[1:]:
            assert_close(found[0][0], e)
            assert_close(found[0][1], force)
        assert found[0][0][[0, 3]].abs().min() > 1e-3 and found[0][1].abs().min() > 1e-6


def everything(dtype):
    """A function of every op, each with inputs of its own, so that no gradients are added up."""
    cases = [Case(op, op.widths[3] if (3,) in op.widths else op.widths[0], dtype, torch.int32) for op in OPS]
    inputs = [case.inputs(N, M) for case in cases]

    def function(idx, *arrays):
        found, at = [], 0
        for case in cases:
            count = len(case.op.args)
            found.append(case(*arrays[at : at + count], idx, M))
            at += count
        return found

    return function, [a for arrays in inputs for a in arrays], [case.weights(N, M) for case in cases]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@both_backends
def test_every_op_bit_for_bit(backend, dtype):
    function, inputs, weights = everything(dtype)
    ours, eager = leaves(inputs), leaves(inputs)
    found, expected = compiled(function, backend)(IDX, *ours), function(IDX, *eager)
    assert all(same_bits(a.detach(), b.detach()) for a, b in zip(found, expected, strict=True))
    found = torch.autograd.grad(found, ours, weights)
    expected = torch.autograd.grad(expected, eager, weights)
    assert all(map(same_bits, found, expected))


@pytest.mark.parametrize("backend", [INDUCTOR])
def test_dynamic_shapes_and_padding_on_inductor(backend):
    function = compiled(
        lambda x, s, idx: segment_ops.segmented_dot(
            segment_ops.segmented_mul(x.cos(), s, idx, s.shape[0]), x, idx, s.shape[0]
        ),
        backend,
        dynamic=True,
    )
    for n, m, pad in ((12, 3, 2), (40, 7, 5)):
        idx = torch.cat([torch.arange(n) * m // n, torch.full((pad,), m)]).int()
        g = torch.Generator().manual_seed(n)
        x = torch.randn(n + pad, 3, generator=g, dtype=torch.float64)
        s = torch.randn(m, generator=g, dtype=torch.float64)
        x[n:] = float("nan")
        ours, theirs = leaves([x, s]), leaves([x[:n], s])
        a = function(*ours, idx)
        b = compositions.segmented_dot(compositions.segmented_mul(theirs[0].cos(), theirs[1], idx[:n], m),
                                       theirs[0], idx[:n], m)  # fmt: skip
        assert_close(a, b)
        w = torch.randn(m, generator=g, dtype=torch.float64)
        found, expected = torch.autograd.grad(a, ours, w), torch.autograd.grad(b, theirs, w)
        assert_close(found[0][:n], expected[0])
        assert_close(found[1], expected[1])


@needs_traced_grad
@pytest.mark.parametrize("backend", [INDUCTOR])
def test_forces_inside_on_inductor(backend):
    idx = IDX
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def loss_of(ops):
        def function(x):
            energy = ops.segmented_rms_norm(x, idx, M) + ops.segmented_dot(x.sin(), x, idx, M)
            (force,) = torch.autograd.grad((energy**2).sum(), x, create_graph=True)
            return (force.sin() * torch.arange(3.0, dtype=x.dtype)).sum()

        return function

    ours, theirs = leaves([x, x])
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        a = compiled(loss_of(segment_ops), backend)(ours)
    b = loss_of(compositions)(theirs)
    a.backward()
    b.backward()
    assert_close(a, b)
    assert_close(ours.grad, theirs.grad)
    assert ours.grad.abs().max() > 1e-3


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_number_of_segments_from_data(fresh_dynamo):
    """`int(idx[-1]) + 1` is known at run time only."""
    idx = torch.tensor([0, 0, 1, 1, 1, 2])
    x = torch.arange(18.0).reshape(6, 3)

    def pool(x, i):
        return segment_ops.segmented_sum(x, i, int(i[-1]) + 1)

    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, idx), segment_ops.segmented_sum(x, idx, 3))
    assert torch.equal(compiled(x, idx.clamp(max=1)), segment_ops.segmented_sum(x, idx.clamp(max=1), 2))


def test_negative_number_of_segments_is_an_error(fresh_dynamo):
    compiled = torch.compile(lambda x, i: segment_ops.segmented_sum(x, i, -1), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="num_segments|negative|Expected"):
        compiled(torch.ones(2), torch.tensor([0, 0]))
