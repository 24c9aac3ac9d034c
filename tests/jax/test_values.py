# SPDX-License-Identifier: Apache-2.0
"""Values against NumPy in float64: every op, dtype, width and kind of segment; padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import LENGTHS, cases, index
from oracles import OPS

from segmentops.jax.segment_ops import (
    segmented_dot,
    segmented_matvec,
    segmented_mean,
    segmented_mul,
    segmented_sum,
)


def check_values(case, lengths, padding):
    """The bound of the contract."""
    idx, m = index(lengths, padding=padding), len(lengths)
    inputs = case.inputs(len(idx), m)
    value, scale = case.op.oracle(*map(np.float64, inputs), np.asarray(idx), m)
    out = case(*inputs, idx, m)
    assert out.shape == value.shape and out.dtype == case.dtype
    np.testing.assert_array_less(np.abs(np.float64(out) - value), 4 * case.eps * scale + 1e-300)


@cases(("float32", "float64"))
@pytest.mark.parametrize("kind", LENGTHS)
def test_values(case, kind):
    check_values(case, LENGTHS[kind], padding=3 if kind in ("mixed", "no elements") else 0)


@cases(("float16", "bfloat16"))
def test_values_half_precision(case):
    check_values(case, LENGTHS["mixed"], padding=3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype):
    """Just above the middle between 1 and the next number: rounded to float32 first, it would be that middle."""
    eps = float(jnp.finfo(dtype).eps)
    x = jnp.asarray([1, eps / 2, 2.0**-24], dtype)
    idx, ones, expected = jnp.zeros(3, jnp.int32), jnp.ones(3, dtype), 1 + eps
    assert float((x.astype("float32").sum()).astype(dtype)) == 1
    for wrap in (jax.jit, lambda f: f):
        assert wrap(lambda x: segmented_sum(x, idx, 1))(x)[0] == expected
        assert wrap(lambda x: segmented_dot(x, ones, idx, 1))(x)[0] == expected
        assert wrap(lambda x: segmented_matvec(x[None], ones[None, :, None], idx[:1], 1))(x)[0, 0] == expected
        gradient = jax.grad(lambda s: (segmented_mul(ones, s, idx, 1) * x).sum())
        assert wrap(gradient)(ones[:1])[0] == expected


@cases(("float32",), widths=1)
def test_int64_idx_and_threads_and_jit(case):
    lengths = np.random.default_rng(0).choice([0, 1, 90, 5000], 30)
    idx, m = index(lengths, "int64"), len(lengths)
    inputs = case.inputs(len(idx), m)
    eager = case(*inputs, idx, m)
    compiled = jax.jit(case, static_argnums=len(inputs) + 1)(*inputs, idx.astype("int32"), m)
    assert np.asarray(eager).tobytes() == np.asarray(compiled).tobytes()
    parts, kinds = [], [d.kind for d in case.op.args]
    for s, end in enumerate(np.cumsum(lengths)):
        mine = {"element": slice(end - lengths[s], end), "segment": slice(s, s + 1)}
        alone = [a[mine[kind]] for a, kind in zip(inputs, kinds, strict=True)]
        parts.append(case(*alone, jnp.zeros(lengths[s], jnp.int32), 1))
    assert np.concatenate(parts).tobytes() == np.asarray(eager).tobytes()  # each segment alone: the same bits


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
@pytest.mark.parametrize("outside", [5, -1, 9])
def test_out_of_range_meets_nothing_inside_jit(op, outside):
    """NaN there too: neither its data nor its gradients reach a segment."""
    from jax_battery import Case

    case = Case(op, op.widths[3] if len(op.widths) > 3 else (3, 3), "float64")
    m, inner = 5, np.repeat(np.arange(5), LENGTHS["mixed"])
    idx = np.sort(np.append(inner, [outside] * 2))
    there = jnp.asarray((idx < 0) | (idx >= m))
    inputs = [jnp.where(there.reshape(-1, *(1,) * (a.ndim - 1)), jnp.nan, a) if d.kind == "element" else a
              for a, d in zip(case.inputs(len(idx), m), op.args, strict=True)]
    kept = [a[~there] if d.kind == "element" else a for a, d in zip(inputs, op.args, strict=True)]

    def total(*arrays):
        out = case(*arrays[:-1], arrays[-1], m)
        return (jnp.sin(out) * jnp.arange(1.0, out.size + 1).reshape(out.shape)[: out.shape[0]]).sum(), out

    numbers = tuple(range(len(inputs)))
    (_, out), grads = jax.jit(jax.value_and_grad(total, numbers, has_aux=True))(*inputs, jnp.asarray(idx, jnp.int32))
    out = np.asarray(out)
    if op.out.kind == "element":
        assert not out[there].any()
        out = out[~there]
    np.testing.assert_array_equal(out, case(*kept, jnp.asarray(inner, jnp.int32), m))
    for grad, d in zip(grads, op.args, strict=True):
        assert np.isfinite(grad).all()
        assert d.kind == "segment" or not np.asarray(grad)[there].any()


def test_nan_under_a_dropped_element():
    idx = jnp.array([0, 1, 2], jnp.int32)
    for wrap in (jax.jit, lambda f: f):
        grad = wrap(jax.grad(lambda x, a: segmented_dot(a, x, idx, 2)[0]))
        assert grad(jnp.array([1.0, 2, 3]), jnp.array([1, 1, jnp.nan])).tolist() == [1, 0, 0]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@cases(("float32",), widths=2)
def test_a_segment_poisons_no_other(case, poison):
    idx, m = index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m)
    bad = [a.at[-1].set(poison) for a in inputs]
    clean, dirty = np.asarray(case(*inputs, idx, m)), np.asarray(case(*bad, idx, m))
    last = slice(4, 5) if case.op.reduces else np.asarray(idx) == 4
    rest = np.delete(dirty, np.arange(len(dirty))[last], 0), np.delete(clean, np.arange(len(clean))[last], 0)
    assert rest[0].tobytes() == rest[1].tobytes()
    assert case.op.selects or not np.isfinite(dirty[last]).all()


@pytest.mark.parametrize("n", [512, 1024, 70_000])
def test_low_precision_counters(n):
    idx = jnp.zeros(n, jnp.int32)
    alternating = jnp.arange(n) % 2
    assert segmented_mean(alternating.astype("bfloat16"), idx, 1)[0] == 0.5
    ones = jnp.ones(n, "float16")
    assert segmented_mean(ones, idx, 1)[0] == 1
    grad = jax.grad(lambda x: segmented_mean(x, idx, 1)[0])(ones)
    np.testing.assert_array_equal(grad, np.full(n, 1 / n, np.float16))


def test_readme():
    x = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    idx = jnp.array([0, 0, 1, 1, 1, 2], dtype=jnp.int32)
    assert segmented_sum(x, idx, num_segments=3).tolist() == [3.0, 12.0, 6.0]
