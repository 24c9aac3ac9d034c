# SPDX-License-Identifier: Apache-2.0
"""JAX's settings, and what programs wrap around a function: custom rules, policies of checkpoint, checks."""

import contextlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify
from jax_battery import argnums, assert_close, cases, index
from native.process import python
from pages import needs_linux

from segmentops.jax.segment_ops import segmented_mul, segmented_rms_norm, segmented_sum

LENGTHS = (2, 0, 1)
M = len(LENGTHS)
IDX = index(LENGTHS, padding=1)


@contextlib.contextmanager
def setting(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


SETTINGS = (
    lambda: jax.numpy_dtype_promotion("strict"),
    lambda: jax.numpy_rank_promotion("raise"),
    lambda: jax.debug_nans(True),
    lambda: jax.debug_infs(True),
    lambda: setting("jax_enable_checks", True),
)


@cases(("float32",), widths=1)
def test_the_strictest_settings(case):
    """Second derivatives, batched over arrays and idx; in the first sample everything is 0 and every segment empty."""
    arrays = case.inputs(len(IDX), M)
    batch = [jnp.stack([jnp.zeros_like(a), a]) for a in arrays]
    idx = jnp.stack([jnp.full_like(IDX, M), IDX])
    out = case(*arrays, IDX, M)
    weights = jnp.arange(1, out.size + 1, dtype=out.dtype).reshape(out.shape)

    def second(idx, *a):
        first = jax.grad(lambda *a: (case(*a, idx, M) * weights).sum(), argnums(case))
        return jax.jvp(first, a, a)[1]

    expected = jax.jit(jax.vmap(second))(idx, *batch)
    with contextlib.ExitStack() as stack:
        for enter in SETTINGS:
            stack.enter_context(enter())
        assert_close(jax.jit(jax.vmap(second))(idx, *batch), expected, 1e-6)
        assert np.isfinite(case(*arrays, IDX, M)).all()


def test_no_tracer_leaks():
    total = lambda x: segmented_mul(x, segmented_rms_norm(x, IDX, M), IDX, M).sum()  # noqa: E731
    with jax.checking_leaks():
        assert jax.jit(jax.hessian(total))(jnp.ones(4)).shape == (4, 4)


def test_a_nan_is_found():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        jax.block_until_ready(segmented_sum(jnp.full(4, jnp.nan), IDX, M))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.vmap], ids=["plain", "vmap"])
@pytest.mark.parametrize("values", [(-1, 0, 1), (0, 1, M + 4), (0, 1, M)])
def test_the_search_for_a_nan_does_not_check_idx(wrap, values, capfd, recwarn):
    """It runs a compiled function again without jit, and what was legal there is."""
    idx, x = jnp.array([values], jnp.int32), -jnp.ones((1, 3))
    if wrap is not jax.vmap:
        idx, x = idx[0], x[0]
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan.*log"):
        jax.jit(wrap(lambda x, idx: jnp.log(segmented_sum(x, idx, M))))(x, idx)
    assert "de-optimized" in capfd.readouterr().out
    assert not [w for w in recwarn if "padding" in str(w.message)]


@pytest.mark.parametrize(
    "policy", ["everything_saveable", "nothing_saveable", "dots_saveable", "save_only_these_names"]
)
def test_policies_of_checkpoint(policy):
    x = jnp.linspace(-1, 2, 12).reshape(4, 3)
    chosen = getattr(jax.checkpoint_policies, policy)

    def total(x):
        norm = checkpoint_name(segmented_rms_norm(x, IDX, M), "norm")
        return jnp.sin(segmented_mul(x, norm, IDX, M)).sum()

    wrapped = jax.checkpoint(total, policy=chosen("norm") if "names" in policy else chosen)
    derivatives = lambda f: jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(x)  # noqa: E731
    assert_close(derivatives(wrapped), derivatives(total))


def test_inside_and_around_custom_rules():
    x = jnp.linspace(-1, 2, 12).reshape(4, 3)

    @jax.custom_vjp
    def backward(x):
        return segmented_rms_norm(x, IDX, M)

    backward.defvjp(lambda x: (backward(x), x), lambda x, g: (segmented_mul(x, 2 * g, IDX, M),))

    @jax.custom_jvp
    def forward(x):
        return segmented_rms_norm(x, IDX, M)

    forward.defjvp(lambda p, t: (forward(*p), segmented_sum(2 * (p[0] * t[0]).sum(1), IDX, M)))
    expected = jnp.where((IDX < M)[:, None], 2 * x, 0)
    for function in (backward, forward):
        total = lambda x, f=function: f(x).sum()  # noqa: E731
        assert_close(jax.jit(jax.grad(total))(x), expected)
        batched = jax.jit(jax.vmap(jax.grad(total)))(jnp.stack([x, 3 * x]))
        assert_close(batched, jnp.stack([expected, 3 * expected]))


def test_checkify():
    x = jnp.linspace(-1, 2, 12).reshape(4, 3)
    gradient = jax.grad(lambda x: segmented_rms_norm(x, IDX, M).sum())
    error, found = jax.jit(checkify.checkify(gradient, errors=checkify.all_checks))(x)
    error.throw()
    assert_close(found, gradient(x))


@pytest.mark.parametrize("weak", [True, False])
def test_weak_types_in_a_carry(weak):
    start = jnp.full(4, 2.0) if weak else jnp.full(4, 2.0, "float64")
    assert start.weak_type == weak

    def step(x, _):
        return segmented_mul(x, segmented_sum(x, IDX, M), IDX, M), None

    out, _ = jax.lax.scan(step, start, None, length=2)
    assert out.tolist() == [128, 128, 16, 0]
    tangent = jax.jvp(lambda x: jax.lax.scan(step, x, None, length=2)[0], (start,), (start,))[1]
    assert tangent.tolist() == [512, 512, 64, 0]


@needs_linux
def test_large_results_prefer_large_pages():
    """Fresh memory costs less in them. In a process of its own: NumPy prefers them, too, where it has been."""
    lines = python("""
    import jax, jax.numpy as jnp
    from pages import LARGE, prefers_large
    from segmentops.jax.segment_ops import segmented_mul
    for dtype in (jnp.float32, jnp.bfloat16):
        n = LARGE // 64 // jnp.dtype(dtype).itemsize
        idx, x, y = jnp.zeros(n, jnp.int32), jnp.ones((n, 64), dtype), jnp.ones(1, dtype)
        out = jax.jit(segmented_mul, static_argnums=3)(x, y, idx, 1).block_until_ready()
        print([prefers_large(a.unsafe_buffer_pointer() + LARGE // 2) for a in (out, x)])
    """, PYTHONPATH=os.pathsep.join(sys.path))  # fmt: skip
    assert lines == ["[True, False]"] * 2
