# SPDX-License-Identifier: Apache-2.0
"""Transforms of transforms of transforms: chains drawn at random, against compositions of jax.ops in float64."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import Case, index
from oracles import OPS

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


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
def test_vmap_over_no_samples(op):
    case = Case(op, op.widths[3] if len(op.widths) > 3 else (2, 3), "float64")
    arrays = case.inputs(len(IDX), M)
    none = [jnp.stack([a])[:0] for a in (IDX, *arrays)]
    out = jax.vmap(lambda idx, *a: case(*a, idx, M))(*none)
    assert out.shape == (0, *case(*arrays, IDX, M).shape)
    gradient = jax.vmap(lambda idx, *a: jax.grad(lambda x: case(x, *a[1:], idx, M).sum())(a[0]))(*none)
    assert gradient.shape == none[1].shape
