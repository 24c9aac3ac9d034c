# SPDX-License-Identifier: Apache-2.0
"""The bits of values, first and second derivatives: those of the PyTorch functions on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import LENGTHS, argnums, cases, index, same_bits

torch = pytest.importorskip("torch")
from segmentops.jax.segment_ops import segmented_rms_norm  # noqa: E402
from segmentops.torch import segment_ops as torch_ops  # noqa: E402


def to_torch(array, grad=False):
    if array.dtype == "bfloat16":  # NumPy's own has none
        return torch.from_numpy(np.array(array.view("int16"))).view(torch.bfloat16).requires_grad_(grad)
    return torch.from_numpy(np.array(array)).requires_grad_(grad)


def from_torch(tensor):
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


KINDS = {"mixed": LENGTHS["mixed"], "sizes": LENGTHS["sizes"], "long": (9000, 0, 31_000)}


@cases(("float32", "float64"))
@pytest.mark.parametrize("lengths", KINDS.values(), ids=KINDS)
def test_bits_equal_torch(case, lengths):
    if sum(lengths) > 1000 and case.width not in ((), (3,), (3, 3)):
        pytest.skip("long segments in the common widths only")
    check_bits(case, lengths)


@cases(("float16", "bfloat16"), widths=2)
def test_bits_equal_torch_in_half_precision(case):
    check_bits(case, (3, 1, 0, 2, 5, 9000, 0, 31_000))


def check_bits(case, lengths):
    """Random cotangents at both orders; the gradient of the weighted gradients, with all arguments moving."""
    idx, m = index(lengths), len(lengths)
    arrays, n = case.inputs(len(idx), m), len(idx)
    weights, second = case.weights(n, m), case.inputs(n, m, seed=9)

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
    assert same_bits(out, from_torch(value))
    for a, b in zip(first, grads, strict=True):
        assert same_bits(a, from_torch(b))
    for a, b in zip(third, again, strict=True):
        assert same_bits(a, from_torch(b)) if b is not None else not np.asarray(a).any()


@cases(("float32", "bfloat16"), widths=1)
def test_forward_mode_bits_equal_torch(case):
    """The tangent, and that of the weighted gradients: forward over reverse."""
    lengths = (3, 1, 0, 2, 70, 5)
    idx, m = index(lengths), len(lengths)
    arrays, moving = (tuple(case.inputs(len(idx), m, seed)) for seed in (0, 5))
    weights = case.weights(len(idx), m)

    @jax.jit
    def ours(weights, arrays, moving):
        function = lambda *a: case(*a, idx, m)  # noqa: E731
        gradients = lambda *a: jax.vjp(function, *a)[1](weights)  # noqa: E731
        return jax.jvp(function, arrays, moving)[1], jax.jvp(gradients, arrays, moving)[1]

    primals, tangents = (tuple(map(to_torch, a)) for a in (arrays, moving))
    w, i = to_torch(weights), to_torch(idx)
    function = lambda *a: getattr(torch_ops, case.op.name)(*a, i, m)  # noqa: E731
    gradients = lambda *a: torch.func.vjp(function, *a)[1](w)  # noqa: E731
    theirs = [torch.func.jvp(f, primals, tangents)[1] for f in (function, gradients)]
    for a, b in zip(jax.tree.leaves(ours(weights, arrays, moving)), jax.tree.leaves(theirs), strict=True):
        assert same_bits(a, from_torch(b))


@cases(("float32", "bfloat16"), widths=1)
def test_subnormal_numbers_are_not_flushed(case):
    """XLA's threads take them for zero; its own operations do so still."""
    n, m = 200_000, 3
    idx = jnp.sort(jnp.arange(n, dtype=jnp.int32) % m)
    tiny = float(jnp.finfo(case.dtype).tiny)
    first, *others = [np.asarray(a, "float64") for a in case.inputs(n, m)]
    arrays = [np.asarray(a, case.dtype) for a in ((abs(first) + 1) * tiny / 10, *others)]  # by NumPy, which keeps them
    out = np.asarray(jax.jit(lambda *a: case(*a, idx, m))(*arrays))
    expected = getattr(torch_ops, case.op.name)(*map(to_torch, map(jnp.asarray, arrays)), to_torch(idx), m)
    assert same_bits(out, from_torch(expected)) and out.any()


def test_a_by_product_that_is_subnormal():
    """1 / (out count), kept for the gradient of rms_norm, in float32."""
    x = jnp.asarray([1e37, 2e37, -3e37, 4e37], "float32")
    idx = jnp.zeros(4, jnp.int32)
    tensor = to_torch(x, True)
    total = torch_ops.segmented_rms_norm(tensor, to_torch(idx), 1).sum()
    expected = from_torch(torch.autograd.grad(total, tensor)[0])
    for wrap in (jax.jit, lambda f: f):
        gradient = wrap(jax.grad(lambda x: segmented_rms_norm(x, idx, 1).sum()))(x)
        assert same_bits(gradient, expected) and abs(gradient).min() > 0.09


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
