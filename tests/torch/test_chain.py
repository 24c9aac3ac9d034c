# SPDX-License-Identifier: Apache-2.0
"""`register_warp_op_chain`: a user's launchers as an operation that compiles and is differentiated twice."""

import itertools

import pytest
import torch
import warp as wp

from segmentops.torch import register_warp_op_chain

wp.init()

names = (f"chain_test::op{i}" for i in itertools.count())


@wp.kernel(enable_backward=False)
def _forward(x: wp.array(dtype=wp.float64), s: wp.array(dtype=wp.float64), out: wp.array(dtype=wp.float64)):
    i = wp.tid()
    out[i] = s[i] * x[i] * x[i] * x[i]


def forward(x, s):
    out = torch.empty_like(x)
    wp.launch(_forward, x.numel(), [wp.from_torch(x), wp.from_torch(s), wp.from_torch(out)], device="cpu")
    return out


def backward(g, x, s):
    return 3 * g * s * x**2, g * x**3


def double_backward(gg_x, gg_s, g, x, s):
    return 3 * gg_x * s * x**2 + gg_s * x**3, 6 * gg_x * g * s * x + 3 * gg_s * g * x**2, 3 * gg_x * g * x**2


def make(**kw):
    arguments = {"double_backward": double_backward, "differentiable": (0, 1)} | kw
    return register_warp_op_chain(next(names), forward, backward, **arguments)


def reference(x, s):
    return s * x**3


X = torch.linspace(-1.5, 2, 6, dtype=torch.float64)
S = torch.linspace(0.5, 1, 6, dtype=torch.float64)
W = torch.linspace(1, 3, 6, dtype=torch.float64)


def leaves():
    return X.clone().requires_grad_(), S.clone().requires_grad_()


def test_value_and_derivatives():
    op = make()
    torch.testing.assert_close(op(X, S), reference(X, S))
    assert torch.autograd.gradcheck(op, leaves())
    assert torch.autograd.gradgradcheck(op, leaves())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_node(backend):
    op = make()
    compiled = torch.compile(lambda x, s: (op(x, s) * W).sum(), fullgraph=True, backend=backend)
    a, b = leaves(), leaves()
    ours = torch.autograd.grad(compiled(*a), a)
    theirs = torch.autograd.grad((reference(*b) * W).sum(), b)
    torch.testing.assert_close(ours, theirs)


def test_functorch():
    op = make()

    def loss(f):
        return lambda x: (f(x, S) * W).sum()

    close = torch.testing.assert_close
    close(torch.func.grad(loss(op))(X), torch.func.grad(loss(reference))(X))
    close(torch.func.jacrev(torch.func.jacrev(loss(op)))(X), torch.func.hessian(loss(reference))(X))
    batch = torch.stack([X, 2 * X])
    close(torch.vmap(op, in_dims=(0, None))(batch, S), reference(batch, S))
    close(torch.vmap(torch.func.grad(loss(op)))(batch), torch.vmap(torch.func.grad(loss(reference)))(batch))


def test_given_batching_rule_is_used():
    calls = []

    def rule(info, in_dims, x, s):
        calls.append(in_dims)
        return reference(x, s), 0

    op = make(vmap=rule)
    torch.vmap(op, in_dims=(0, None))(torch.stack([X, X]), S)
    assert calls == [(0, None)]


def test_saved_outputs_and_scalars():
    def fwd(x, k: int):
        return x**k, x ** (k - 1)

    op = register_warp_op_chain(next(names), fwd, lambda g, x, k, power: g * k * power, saves=1)
    x = X.clone().requires_grad_()
    out = op(x, 4)
    assert torch.equal(out, X**4)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], 4 * X**3)


def test_fake_gives_the_shape():
    op = register_warp_op_chain(
        next(names), lambda x: x.sum().reshape(1), lambda g, x: g.expand_as(x), fake=lambda x: x.new_empty(1)
    )
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], torch.ones_like(X))


def test_missing_derivatives_raise_and_name_the_op():
    op = register_warp_op_chain("chain_test::once", forward, backward, differentiable=(0, 1))
    x, s = leaves()
    (g,) = torch.autograd.grad(op(x, s).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="chain_test::once: no double_backward"):
        torch.autograd.grad(g.sum(), x)

    op = register_warp_op_chain("chain_test::twice", forward, backward, double_backward, differentiable=(0, 1))
    (g,) = torch.autograd.grad(op(x, s).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="chain_test::twice: there is no third"):
        torch.autograd.grad(h.sum(), x)


def test_forward_mode_raises():
    op = register_warp_op_chain("chain_test::reverse_only", forward, backward, double_backward, differentiable=(0, 1))
    with pytest.raises(NotImplementedError, match="chain_test::reverse_only: forward-mode"):
        torch.func.jvp(op, (X, S), (W, W))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, W)
        with pytest.raises(NotImplementedError, match="chain_test::reverse_only: forward-mode"):
            op(dual, S)


def test_opcheck():
    make()
    name = f"op{int(next(names).split('op')[1]) - 1}"
    torch.library.opcheck(getattr(torch.ops.chain_test, name).default, (*leaves(),))


@pytest.mark.parametrize(
    "kw, message",
    [
        ({"name": "noname"}, "namespace::name"),
        ({"differentiable": (2,)}, "differentiable must name tensor inputs"),
        ({"differentiable": ()}, "differentiable must name tensor inputs"),
        ({"forward": lambda *x: x}, "fixed number"),
    ],
)
def test_bad_registration(kw, message):
    arguments = {"name": next(names), "forward": forward, "backward": backward} | kw
    with pytest.raises(ValueError, match=message):
        register_warp_op_chain(**arguments)


def test_parameters_after_scalars_must_be_scalars():
    def fwd(k: int, x):
        return x * k

    with pytest.raises(ValueError, match="must come last"):
        register_warp_op_chain(next(names), fwd, lambda g, k, x: g * k)


def test_wrong_number_of_results():
    op = register_warp_op_chain("chain_test::short", lambda x: (x + 1, x), lambda g, x: g)
    with pytest.raises(ValueError, match="chain_test::short: the launcher must return 1 tensors, got 2"):
        op(X)
