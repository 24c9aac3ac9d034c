# SPDX-License-Identifier: Apache-2.0
"""Transforms of transforms of transforms: chains drawn at random, against compositions of jax.ops in float64."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import Case, index
from oracles import OPS

from segmentops.jax.segment_ops import segmented_dot

LENGTHS = (2, 0, 3, 1)
M = len(LENGTHS)
IDX = index(LENGTHS, padding=1)


# Each makes a function (arrays, idx) -> tree from another one.
def jit(f):
    return jax.jit(f)


def checkpoint(f):
    return jax.checkpoint(f)


def vmap(f):
    """Over the first array."""
    return lambda a, idx: jax.vmap(lambda x: f((x, *a[1:]), idx))(jnp.stack([a[0], 2 * a[0], jnp.cos(a[0])]))


def vmap_all(f):
    def batched(a, idx):
        both = [jnp.stack([x, jnp.sin(x)], -1) for x in a]
        return jax.vmap(lambda idx, *a: f(a, idx), -1)(jnp.stack([idx, jnp.minimum(idx + 1, M)], -1), *both)

    return batched


def jvp(f):
    return lambda a, idx: jax.jvp(lambda *a: f(a, idx), a, tuple(jnp.cos(x + 1) for x in a))[1]


def vjp(f):
    def pulled(a, idx):
        out, pull = jax.vjp(lambda *a: f(a, idx), *a)
        return pull(jax.tree.map(lambda o: jnp.cos(o + jnp.arange(o.size).reshape(o.shape)), out))

    return pulled


def scan(f):
    def scanned(a, idx):
        def step(x, factor):
            out = f((x * factor, *a[1:]), idx)
            return x + 0.1 * sum(jnp.sin(o).sum() for o in jax.tree.leaves(out)), out

        return jax.lax.scan(step, a[0], jnp.array([1.0, 0.5]))

    return scanned


def cond(f):
    def chosen(a, idx):
        zeros = jax.tree.map(jnp.zeros_like, f(a, idx))
        return jax.lax.cond(a[0].sum() > -1e9, lambda a: f(a, idx), lambda _: zeros, a)

    return chosen


def chain(seed):
    draw = random.Random(seed)
    while True:
        found = [draw.choice([jit, checkpoint, vmap, vmap_all, jvp, vjp, scan, cond]) for _ in range(4)]
        if 0 < sum(w in (jvp, vjp) for w in found) <= 2 and sum(w in (vmap, vmap_all) for w in found) > 0:
            return found


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
def test_chain(op):
    case = Case(op, op.widths[3] if len(op.widths) > 3 else (2, 3), "float64")
    arrays = tuple(case.inputs(len(IDX), M))
    wrappers = chain(op.short)

    def composed(a, idx):
        out = case.composed(*a, idx, M)  # which gives something for padding
        return out if op.reduces else jnp.where((idx < M).reshape(-1, *(1,) * (out.ndim - 1)), out, 0)

    results = []
    for function in (lambda a, idx: case(*a, idx, M), composed):
        for wrap in wrappers:
            function = wrap(function)
        results.append(jax.tree.leaves(jax.jit(function)(arrays, IDX)))
    for got, expected in zip(*results, strict=True):
        scale = 1 + np.abs(expected).max()
        names = " of ".join(w.__name__ for w in reversed(wrappers))
        np.testing.assert_allclose(got / scale, expected / scale, rtol=1e-9, atol=1e-9, err_msg=names)


class Padded:
    """An op on arrays whose elements of padding are NaN, or its composition on arrays in which they are 0."""

    def __init__(self, case, ours):
        self.case, self.ours = case, ours
        self.elements = [d.kind == "element" for d in case.op.args]

    def __call__(self, a, idx):
        if self.ours:
            return self.case(*a, idx, M)
        out = self.case.composed(*a, idx, M)
        return out if self.case.op.reduces else jnp.where((idx < M).reshape(-1, *(1,) * (out.ndim - 1)), out, 0)

    def arrays(self, seed):
        """Inputs, or tangents."""
        fill = jnp.nan if self.ours else 0.0
        for a, element in zip(self.case.inputs(len(IDX), M, seed), self.elements, strict=True):
            yield jnp.where((IDX == M).reshape(-1, *(1,) * (a.ndim - 1)), fill, a) if element else a


def constant(o):
    return jnp.cos(1 + jnp.arange(o.size, dtype=o.dtype)).reshape(o.shape)


# What they multiply by is constant, so that no NaN comes from the test's own arithmetic.
NESTED = {
    "jit": lambda f, p: jax.jit(f),
    "checkpoint": lambda f, p: jax.checkpoint(f),
    "vmap": lambda f, p: lambda a, idx: jax.vmap(lambda x: f((x, *a[1:]), idx))(jnp.stack([a[0], 2 * a[0]])),
    "vmap, last axis": lambda f, p: lambda a, idx: jax.vmap(lambda *a: f(a, idx), -1)(
        *[jnp.stack([x, 2 * x], -1) for x in a]
    ),
    "vmap over idx": lambda f, p: lambda a, idx: jax.vmap(lambda a, idx: f(a, idx))(
        jax.tree.map(lambda x: jnp.stack([x, 2 * x]), a), jnp.stack([idx, idx.at[-2].set(M)])
    ),
    "jvp": lambda f, p: lambda a, idx: jax.jvp(lambda a: f(a, idx), (a,), (tuple(p.arrays(seed=1)),)),
    "vjp": lambda f, p: lambda a, idx: (lambda out, pull: pull(jax.tree.map(constant, out)))(
        *jax.vjp(lambda a: f(a, idx), a)
    ),
    "jacfwd": lambda f, p: lambda a, idx: jax.jacfwd(lambda x: f((x, *a[1:]), idx))(a[0]),
    "jacrev": lambda f, p: lambda a, idx: jax.jacrev(lambda x: f((x, *a[1:]), idx))(a[0]),
}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
@pytest.mark.parametrize("inner", NESTED)
def test_nan_padding_under_two_transforms(op, inner):
    case = Case(op, op.widths[3] if len(op.widths) > 3 else (2, 3), "float64")

    @jax.jit
    def derivatives(idx):
        found = []
        for ours in (True, False):
            p = Padded(case, ours)
            found.append({o: NESTED[o](NESTED[inner](p, p), p)(tuple(p.arrays(seed=0)), idx) for o in NESTED})
        return found

    ours, expected = derivatives(IDX)
    for outer in NESTED:
        for got, right in zip(jax.tree.leaves(ours[outer]), jax.tree.leaves(expected[outer]), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9, err_msg=f"{outer} of {inner}")


@pytest.mark.parametrize("order", [(jax.jacfwd, jax.jacrev, jax.jacrev), (jax.jacrev, jax.jacrev, jax.jacfwd)])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
def test_nan_padding_in_third_derivatives(op, order):
    case = Case(op, op.widths[3] if len(op.widths) > 3 else (2, 3), "float64")

    @jax.jit
    def derivatives(idx):
        found = []
        for ours in (True, False):
            p = Padded(case, ours)
            x, *rest = p.arrays(seed=0)
            f = lambda x, p=p, rest=rest: (p((x, *rest), idx) ** 2).sum()  # noqa: E731
            for wrap in order:
                f = wrap(f)
            found.append(f(x))
        return found

    got, expected = derivatives(IDX)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_nan_padding_of_a_batch():
    x, shared = jnp.array([[3.0, 4], [1, 2], [jnp.nan, jnp.nan]]), jnp.array([0, 0, 1], jnp.int32)
    for axes, idx in ((0, shared[None]), ((0, None), shared)):
        batched = jax.vmap(lambda x, idx: segmented_dot(x, x, idx, 1), axes)
        gradient = jax.grad(lambda x, idx=idx, batched=batched: batched(x, idx).sum())(x[None])
        assert gradient.tolist() == [[[6, 8], [2, 4], [0, 0]]]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
def test_vmap_over_no_samples(op):
    case = Case(op, op.widths[3] if len(op.widths) > 3 else (2, 3), "float64")
    arrays = case.inputs(len(IDX), M)
    none = [jnp.stack([a])[:0] for a in (IDX, *arrays)]
    out = jax.vmap(lambda idx, *a: case(*a, idx, M))(*none)
    assert out.shape == (0, *case(*arrays, IDX, M).shape)
    gradient = jax.vmap(lambda idx, *a: jax.grad(lambda x: case(x, *a[1:], idx, M).sum())(a[0]))(*none)
    assert gradient.shape == none[1].shape
