# SPDX-License-Identifier: Apache-2.0
"""The bits of values, first and second derivatives: those of the PyTorch functions on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import LENGTHS, argnums, cases, index, same_bits

torch = pytest.importorskip("torch")
from nvalchemiops.torch import segment_ops as torch_ops  # noqa: E402


def to_torch(array, grad=False):
    return torch.from_numpy(np.array(array)).requires_grad_(grad)


KINDS = {"mixed": LENGTHS["mixed"], "sizes": LENGTHS["sizes"], "long": (9000, 0, 31_000)}


@cases(("float32", "float64"))
@pytest.mark.parametrize("lengths", KINDS.values(), ids=KINDS)
def test_bits_equal_torch(case, lengths):
    """Random cotangents at both orders; the gradient of the weighted gradients, with all arguments moving."""
    idx, m = index(lengths), len(lengths)
    arrays, n = case.inputs(len(idx), m), len(idx)
    weights, second = case.weights(n, m), case.inputs(n, m, seed=9)
    if n > 1000 and case.width not in ((), (3,), (3, 3)):
        pytest.skip("long segments in the common widths only")

    @jax.jit
    def ours(weights, second, *arrays):
        def gradients(weights, *arrays):
            return jax.vjp(lambda *a: case(*a, idx, m), *arrays)[1](weights)

        out = case(*arrays, idx, m)
        first, pull = jax.vjp(gradients, weights, *arrays)
        return out, first, pull(tuple(second))

    out, first, third = ours(weights, second, *arrays)
    function = getattr(torch_ops, case.op.name)
    tensors, w = [to_torch(a, True) for a in arrays], to_torch(weights, True)
    value = function(*tensors, to_torch(idx), m)
    grads = torch.autograd.grad(value, tensors, w, create_graph=True)
    again = torch.autograd.grad(grads, [w, *tensors], [to_torch(s) for s in second], allow_unused=True)
    assert same_bits(out, value.detach().numpy())
    for a, b in zip(first, grads, strict=True):
        assert same_bits(a, b.detach().numpy())
    for a, b in zip(third, again, strict=True):
        assert same_bits(a, b.numpy()) if b is not None else not np.asarray(a).any()


@cases(("float32",), widths=2)
def test_compiled_equals_eager_and_repeats(case):
    lengths = np.random.default_rng(0).integers(0, 3000, 40)
    idx, m = index(lengths), len(lengths)
    arrays, weights = case.inputs(len(idx), m), case.weights(len(idx), m)
    gradients = lambda *a: jax.vjp(lambda *a: case(*a, idx, m), *a)[1](weights)  # noqa: E731
    eager = gradients(*arrays)
    compiled = jax.jit(gradients)
    for _ in range(3):
        for a, b in zip(eager, compiled(*arrays), strict=True):
            assert same_bits(a, b)


@cases(("float32",), widths=2)
def test_a_molecule_alone_and_in_a_batch(case):
    """Value, gradient and the gradient along a direction: eight identical molecules, and each alone."""
    n, m = 70, 8
    idx = index([n] * m)
    one = case.inputs(n, 1)
    tiled = [jnp.concatenate([a] * m) for a in one]

    def derivatives(idx, m):
        def run(*a):
            gradients = lambda *a: jax.vjp(lambda *a: case(*a, idx, m), *a)[1]  # noqa: E731
            first = lambda *a: gradients(*a)(jnp.ones_like(case(*a, idx, m)))  # noqa: E731
            return case(*a, idx, m), first(*a), jax.jvp(first, a, a)[1]

        return jax.jit(run)

    alone = jax.tree.leaves(derivatives(jnp.zeros(n, jnp.int32), 1)(*one))
    batch = jax.tree.leaves(derivatives(idx, m)(*tiled))
    for a, b in zip(alone, batch, strict=True):
        for part in np.split(np.asarray(b), m):
            assert same_bits(a, part)
    assert argnums(case)
