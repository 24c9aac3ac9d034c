# SPDX-License-Identifier: Apache-2.0
"""Cases behind real reports, by the kind of fault: NaN under padding, poisoned neighbours, masked softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import argnums, cases, index, loss, same_bits

from segmentops.jax.segment_ops import segmented_mul, segmented_sum

M = 3
IDX = index((2, 0, 3), padding=2)  # the last two are padding


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
@cases(("float32",), widths=2)
def test_padding_reaches_no_derivative(case, bad):
    """First and second derivatives under jit: those without the padded elements, and 0 at these."""
    inputs = case.inputs(len(IDX), M)
    poisoned = [a.at[-2:].set(bad) if d.kind == "element" else a for a, d in zip(inputs, case.op.args, strict=True)]
    kept = [a[:-2] if d.kind == "element" else a for a, d in zip(inputs, case.op.args, strict=True)]
    weights = case.weights(len(IDX), M)
    shorter = weights[:-2] if case.op.out.kind == "element" else weights

    def derivatives(weights, idx):
        first = jax.grad(loss(case, weights, idx, M), argnums(case))
        # what comes back to padding, the cosine of a padded element, is NaN: it must not get through either
        return jax.jit(
            lambda *a: (first(*a), jax.grad(lambda *b: sum((g**2).sum() for g in first(*b)), argnums(case))(*a))
        )

    got, expected = derivatives(weights, IDX)(*poisoned), derivatives(shorter, IDX[:-2])(*kept)
    for ours, alone in zip(got, expected, strict=True):
        for a, b, d in zip(ours, alone, case.op.args, strict=True):
            assert d.kind == "segment" or not np.asarray(a[-2:]).any()
            np.testing.assert_allclose(a[:-2] if d.kind == "element" else a, b, rtol=1e-6, atol=1e-6)


def softmax(x, idx, m):
    """Of each segment, 0 for padding; the shift is a constant to derivatives."""
    x = segmented_mul(x, jnp.ones(m, x.dtype), idx, m)  # padding becomes 0
    largest = jax.lax.stop_gradient(jax.ops.segment_max(x, idx, m))
    e = jnp.exp(x - segmented_mul(jnp.ones_like(x), jnp.where(jnp.isfinite(largest), largest, 0), idx, m))
    return segmented_mul(e, 1 / segmented_sum(e, idx, m), idx, m)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("huge", [6e4, 3e38, np.inf, np.nan])
def test_masked_softmax(dtype, huge):
    """A padded element with a huge value changes no bit of a real segment, in the derivatives neither."""
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=7), dtype), jnp.asarray(rng.normal(size=7), dtype)
    x = x.at[-2:].set(huge)
    total = lambda w, idx: lambda x: (w * softmax(x, idx, M) ** 2).sum()  # noqa: E731

    def everything(x, w, idx):
        along = jnp.cos(jnp.arange(x.size, dtype=x.dtype))
        first = jax.grad(total(w, idx))
        return softmax(x, idx, M), first(x), jax.grad(lambda x: jnp.vdot(first(x), along))(x)

    for got, alone in zip(jax.jit(everything)(x, w, IDX), jax.jit(everything)(x[:-2], w[:-2], IDX[:-2]), strict=True):
        assert np.isfinite(got).all() and not np.asarray(got[-2:]).any()
        tolerance = 8 * float(jnp.finfo(dtype).eps)  # XLA contracts what is around the operations
        np.testing.assert_allclose(got[:-2], alone, rtol=tolerance, atol=tolerance)
    probabilities = softmax(x, IDX, M)  # eager: op by op, so to the bit
    assert same_bits(probabilities[:-2], softmax(x[:-2], IDX[:-2], M))
    np.testing.assert_allclose(segmented_sum(probabilities, IDX, M)[jnp.array([0, 2])], 1, rtol=4e-3)


def test_softmax_of_a_neighbour_of_infinity():
    x = jnp.array([1.0, -1.0, -jnp.inf, 50.0], "float32")
    idx = jnp.array([1, 1, 2, 2], jnp.int32)
    for run in (softmax, jax.jit(softmax, static_argnums=2)):
        np.testing.assert_allclose(run(x, idx, 3), [0.880797, 0.119203, 0, 1], atol=1e-6)
