# SPDX-License-Identifier: Apache-2.0
"""Derivatives: finite differences in both modes, compositions of jax.ops up to third order, zero rules."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from jax.test_util import check_grads
from jax_battery import LENGTHS, SMALL, argnums, assert_close, cases, index, loss

from segmentops.jax.segment_ops import (
    segmented_matvec,
    segmented_max_norm,
    segmented_mean,
    segmented_rms_norm,
    segmented_sum,
)


@cases(("float64",), widths=1)
def test_finite_differences_to_third_order(case):
    lengths = (2, 0, 1)
    idx, m = index(lengths), len(lengths)
    inputs = case.inputs(len(idx), m)
    function = jax.jit(lambda *a: case(*a, idx, m))
    check_grads(function, inputs, order=3, modes=["fwd", "rev"], atol=1e-4, rtol=1e-4, eps=1e-4)


def along(mode, function, vectors):
    """The derivative of a scalar function along a direction: scalar again, so modes nest."""
    if mode == "forward":
        return lambda *a: jax.jvp(function, a, vectors)[1]
    numbers = tuple(range(len(vectors)))
    return lambda *a: sum(jnp.vdot(g, v) for g, v in zip(jax.grad(function, numbers)(*a), vectors, strict=True))


@cases(("float64",), widths=2)
def test_every_mixture_of_modes(case):
    lengths = (0, 2, 0, 1)
    idx, m = index(lengths, padding=1), len(lengths)
    inputs, weights = case.inputs(len(idx), m), case.weights(len(idx), m)
    if case.op.out.kind == "element":
        weights = weights.at[-1].set(0.0)  # the compositions give something else for padding
    directions = [tuple(case.inputs(len(idx), m, seed)) for seed in (5, 6, 7)]

    def derivatives(function, mixtures):
        found = []
        for modes in mixtures:
            derived = function
            for mode, vectors in zip(modes, directions, strict=False):
                derived = along(mode, derived, vectors)
            found.append(derived)
        return jax.jit(lambda *a: [f(*a) for f in found])

    mixtures = [m for order in (1, 2, 3) for m in itertools.product(("forward", "reverse"), repeat=order)]
    ours = derivatives(loss(case, weights, idx, m), mixtures)(*inputs)
    expected = derivatives(loss(case.composed, weights, idx, m), [("forward",) * order for order in (1, 2, 3)])(*inputs)
    for modes, value in zip(mixtures, ours, strict=True):
        np.testing.assert_allclose(value, expected[len(modes) - 1], rtol=1e-9, err_msg=str(modes))


@cases(("float32",), widths=2)
def test_gradients_float32(case):
    idx, m = index(LENGTHS["sizes"]), len(LENGTHS["sizes"])
    inputs, weights = case.inputs(len(idx), m), case.weights(len(idx), m)
    wide = [a.astype("float64") for a in inputs]
    got = jax.grad(loss(case, weights, idx, m), argnums(case))(*inputs)
    expected = jax.grad(loss(case.composed, weights.astype("float64"), idx, m), argnums(case))(*wide)
    assert_close(got, expected, 2e-5)


@cases(("float16", "bfloat16"), widths=1)
def test_half_precision(case):
    idx, m = index(SMALL), len(SMALL)
    inputs, weights = case.inputs(len(idx), m), case.weights(len(idx), m)
    wide = [a.astype("float64") for a in inputs]
    got = jax.grad(loss(case, weights, idx, m), argnums(case))(*inputs)
    assert all(g.dtype == case.dtype for g in got)
    expected = jax.grad(loss(case.composed, weights.astype("float64"), idx, m), argnums(case))(*wide)
    assert_close(tuple(g.astype("float64") for g in got), expected, 40 * case.eps)


@pytest.mark.parametrize("op", [segmented_mean, segmented_rms_norm, segmented_max_norm])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_segments_have_zero_derivatives(op, dtype):
    """Empty and all-zero ones, to third order, both modes, never NaN."""
    idx = jnp.array([0, 0, 2, 2, 3], jnp.int32)
    x = jnp.array([1.0, 2, 0, 0, 5], dtype)
    derivative = lambda x: op(x, idx, 4)  # noqa: E731
    for order in range(3):
        derivative = (jax.jacrev if order % 2 else jax.jacfwd)(derivative)
        found = np.asarray(derivative(x))
        assert np.isfinite(found).all()
        assert not found[1].any()
        if op is not segmented_mean:
            assert not found[2].any()


@pytest.mark.parametrize("nested", [False, True])
def test_infinite_tangents_where_there_is_no_gradient(nested):
    """An element that is not the maximum has none, whatever its tangent is: 0 times inf is NaN."""
    idx, d, one = jnp.array([0, 0], jnp.int32), jnp.array([0.0, 25.0]), jnp.ones(2)

    def tangent(d):
        return jax.jvp(lambda d: segmented_max_norm(jnp.sqrt(d), idx, 1), (d,), (one,))[1]

    if not nested:
        assert_close(tangent(d), [0.1])
        assert_close(jax.linearize(lambda d: segmented_max_norm(jnp.sqrt(d), idx, 1), d)[1](one), [0.1])
        return
    assert_close(jax.jvp(tangent, (d,), (one,))[1], [-0.002])
    assert_close(jax.grad(lambda d: tangent(d).sum())(d)[1], -0.002)


@pytest.mark.parametrize("op", [segmented_rms_norm, segmented_max_norm])
def test_infinite_tangents_of_zeros(op):
    """At a segment of zeros the derivatives are 0."""
    idx, x = jnp.array([0, 0, 1], jnp.int32), jnp.array([0.0, 0.0, 4.0])
    assert_close(jax.jvp(lambda x: op(jnp.sqrt(x), idx, 2), (x,), (jnp.ones(3),))[1], [0, 0.25])


@pytest.mark.parametrize("n", [1_000_000, 8_000_000, 40_000_000])
def test_tangents_of_very_many(n):
    """1 / n is hardly a number of float16, or none."""
    x, idx = jnp.ones(n, "float16"), jnp.zeros(n, jnp.int32)
    assert jax.jvp(lambda x: segmented_rms_norm(x, idx, 1), (x,), (x,))[1].tolist() == [1]


def test_tangents_of_sums_that_overflow_in_parts():
    """float16 holds the sum, but not its terms."""
    idx = jnp.zeros(2, jnp.int32)
    large, parts = jnp.full((2, 1), 300.0, "float16"), jnp.array([[300.0], [299.0]], "float16")
    matrix = jnp.full((1, 1, 1), 300.0, "float16")

    def gradients(v, a, g):
        return jax.vjp(lambda v, a: segmented_matvec(v, a, idx, 1), v, a)[1](g)

    found = jax.jvp(gradients, (large, matrix, large), (-parts, -matrix, parts))[1]
    assert [np.ravel(t).tolist() for t in found] == [[0, -300], [0]]


MAGNITUDES = {  # exponents of 2 from the least subnormal numbers on, as far as squares fit into float64
    "float32": range(-147, 126, 21),
    "bfloat16": range(-131, 126, 32),
    "float16": range(-22, 14, 5),
    "float64": range(-510, 510, 60),
}


@pytest.mark.parametrize("dtype", MAGNITUDES)
@pytest.mark.parametrize("op", [segmented_rms_norm, segmented_max_norm])
def test_norms_of_every_magnitude(op, dtype):
    """The derivatives of order k at c x are c^(1 - k) times those at x: right where they are numbers, never NaN."""
    idx = jnp.array([0, 0, 0, 1, 1, 1], jnp.int32)
    x = np.array([[1.0, -2, 0], [0, 0, 0], [3, 0, 1], [1, 1, 2], [0, 1, 0], [0, 0, 0]])
    direction = np.random.default_rng(0).normal(size=(6, 3)).astype(dtype)

    @jax.jit
    def orders(x):
        """order: derivatives"""
        v = jnp.asarray(direction, x.dtype)
        value = lambda x: op(x, idx, 2)  # noqa: E731
        gradient = jax.grad(lambda x: value(x).sum())
        tangent = lambda f: lambda x: jax.jvp(f, (x,), (v,))[1]  # noqa: E731
        along = lambda f: lambda x: (f(x) * v).sum()  # noqa: E731
        return {
            0: [value(x)],
            1: [gradient(x), tangent(value)(x)],
            2: [jax.grad(along(gradient))(x), tangent(tangent(value))(x), tangent(gradient)(x),
                jax.grad(lambda x: tangent(value)(x).sum())(x)],
            3: [tangent(tangent(gradient))(x)],
        }  # fmt: skip

    limits = jnp.finfo(dtype)
    at_one = orders(jnp.asarray(x.astype(dtype).astype("float64")))
    for exponent in MAGNITUDES[dtype]:
        scaled = (x * 2.0**exponent).astype(dtype)
        assert (scaled.astype("float64") == x * 2.0**exponent).all()
        for order, derivatives in orders(jnp.asarray(scaled)).items():
            for which, (found, at) in enumerate(zip(derivatives, at_one[order], strict=True)):
                found, expected = np.asarray(found, "float64"), np.asarray(at) * 2.0 ** (exponent * (1 - order))
                assert order > 2 or not np.isnan(found).any(), (exponent, order, which)
                if np.abs(expected).max() > float(limits.max) / 2:
                    continue
                flushed = limits.smallest_normal if order > 1 else limits.smallest_subnormal  # to 0, by XLA
                bound = 8 * float(limits.eps) * np.abs(expected).max() + float(flushed)
                assert (np.abs(found - expected) <= bound).all(), (exponent, order, which)


def test_forward_mode_of_an_empty_middle_segment():
    idx = jnp.array([0, 0, 2, 2, 2], jnp.int32)
    x = jnp.arange(5.0)
    _, tangent = jax.jvp(lambda x: segmented_mean(x, idx, 3), (x,), (x + 1,))
    assert tangent.tolist() == [1.5, 0, 4]


def test_products_do_not_overflow():
    """float32 from 1e-15 to 1e15: the second derivative of rms_norm."""
    idx = jnp.zeros(3, jnp.int32)
    for scale in (1e-15, 1.0, 1e15):
        x = jnp.array([1.0, 2.0, 2.0], "float32") * np.float32(scale)
        hessian = jax.hessian(lambda x: segmented_rms_norm(x, idx, 1)[0])(x) * np.float32(scale)
        expected = np.eye(3) / 3 / np.sqrt(3) - np.outer([1, 2, 2], [1, 2, 2]) / 27 / np.sqrt(3)
        np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-7)


@cases(("float64",), widths=1)
def test_no_elements(case):
    for m in (3, 0):
        idx = jnp.zeros(0, jnp.int32)
        inputs = case.inputs(0, m)
        total = lambda *a, m=m, idx=idx: case(*a, idx, m).sum()  # noqa: E731
        for got, a in zip(jax.jit(jax.grad(total, argnums(case)))(*inputs), inputs, strict=True):
            assert got.shape == a.shape and not np.asarray(got).any()
        assert jax.jacrev(lambda *a, m=m, idx=idx: case(*a, idx, m))(*inputs).size == 0
        batched = jax.vmap(lambda *a, m=m, idx=idx: case(*a, idx, m))(*[jnp.stack([a, a]) for a in inputs])
        assert batched.shape == (2, *case(*inputs, idx, m).shape)


@cases(("float64",), widths=1)
@pytest.mark.parametrize("reverse", [False, True])
def test_taylor_series(case, reverse):
    """`jet` to third order, of the op and of its gradient, against derivatives along a curve of the composition."""
    idx, m = index(SMALL), len(SMALL)
    arrays, weights = case.inputs(len(idx), m), case.weights(len(idx), m)
    series = [[a * 0.5 for a in case.inputs(len(idx), m, seed)] for seed in (2, 3, 4)]

    def function(op):
        plain = lambda *a: (op(*a, idx, m),)  # noqa: E731
        return jax.grad(lambda *a: (op(*a, idx, m) * weights).sum(), argnums(case)) if reverse else plain

    def expected(*arrays):
        def along(t):
            curve = [x + a * t + b * t**2 / 2 + c * t**3 / 6 for x, a, b, c in zip(arrays, *series, strict=True)]
            return function(case.composed)(*curve)

        found = [along]
        for _ in series:
            found.append(lambda t, f=found[-1]: jax.jvp(f, (t,), (1.0,))[1])
        return [f(0.0) for f in found]

    value, *coefficients = jax.jit(expected)(*arrays)
    outs, terms = jet(function(case), arrays, list(zip(*series, strict=True)))
    assert_close(outs, value)
    for k, right in enumerate(coefficients):
        for term, r in zip(terms, right, strict=True):
            np.testing.assert_allclose(term[k], r, rtol=1e-8, atol=1e-8)


def test_a_taylor_series_by_hand():
    idx, x = jnp.array([0, 0, 1], jnp.int32), jnp.arange(3.0)
    _, terms = jet(lambda x: segmented_sum(jnp.sin(x), idx, 2), (x,), ([jnp.ones(3), jnp.zeros(3)],))
    np.testing.assert_allclose(terms[1], [-0.841471, -0.909297], atol=1e-6)


@cases(("float64",), widths=1)
def test_float64_where_x64_is_off(case):
    """An array that was made where it was on: three derivatives, with all of its digits."""
    idx, m = index(SMALL), len(SMALL)
    x, *rest = case.inputs(len(idx), m)
    direction, cotangent = case.inputs(len(idx), m, seed=2)[0], case.weights(len(idx), m)
    function = lambda x: case(x, *rest, idx, m)  # noqa: E731
    reverse = lambda f, ct: lambda x: jax.vjp(f, x)[1](ct)[0]  # noqa: E731
    forward = lambda f: lambda x: jax.jvp(f, (x,), (direction,))[1]  # noqa: E731
    first = reverse(function, cotangent)
    found = [function, first, forward(first), reverse(first, direction), forward(forward(first))]
    found.append(forward(reverse(first, direction)))
    if "max" not in case.op.short:  # a derivative of JAX's own gather in reverse fails without x64
        found.append(reverse(reverse(first, direction), direction))
    expected = [f(x) for f in found]
    with jax.enable_x64(False):
        eager = [f(x) for f in found]
        compiled = [jax.jit(f)(x) for f in found]
    assert all(a.dtype == "float64" for a in eager + compiled)
    assert_close(eager, expected, 1e-12)
    assert_close(compiled, expected, 1e-12)
