# SPDX-License-Identifier: Apache-2.0
"""Bad arguments: the right exception, before anything is computed, with a message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import OPS

from segmentops.jax import segment_ops
from segmentops.jax.segment_ops import segmented_mul, segmented_sum

X = jnp.ones(4)
IDX = jnp.array([0, 0, 1, 2], jnp.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((X, IDX[:3], 3), ValueError, "one row per element"),
        ((X, IDX.reshape(2, 2), 3), ValueError, "1-D"),
        ((X, IDX.astype("uint8"), 3), ValueError, "int32"),
        ((X, IDX > 0, 3), ValueError, "int32"),
        ((X, IDX.astype("float32"), 3), ValueError, "int32"),
        ((X.astype("int32"), IDX, 3), ValueError, r"float32.*x\.astype\(jnp\.float32\)"),
        ((np.ones(4, bool), IDX, 3), ValueError, r"float32.*x\.astype\(jnp\.float32\)"),
        ((X.astype("complex64"), IDX, 3), ValueError, "float32"),
        ((np.ones(4, ">f4"), IDX, 3), ValueError, "float32.*>f4"),
        ((X.astype("float8_e4m3fn"), IDX, 3), ValueError, "float32"),
        ((X, np.array(IDX, ">i4"), 3), ValueError, "int32.*>i4"),
        ((X, IDX, jnp.array([3])), TypeError, "num_segments"),
        ((jnp.float32(1), IDX, 3), ValueError, "0-D"),
        ((X, IDX, -1), ValueError, "negative"),
        ((X, IDX, True), TypeError, "num_segments"),
        ((X, IDX, 3.0), TypeError, "num_segments"),
        ((X, IDX, None), TypeError, "num_segments"),
        (([1.0] * 4, IDX, 3), TypeError, r"x must be a jax.Array.*jnp\.asarray\(x\)"),
        ((X, [0, 0, 1, 2], 3), TypeError, r"idx must be a jax.Array.*jnp\.asarray\(idx\)"),
        ((X, IDX.at[0].set(-1), 3), ValueError, r"range .* idx\[0\] = -1 is negative"),
        ((X, IDX, 1), ValueError, r"range .* idx\[3\] = 2"),
        ((X, IDX[::-1], 3), ValueError, r"sorted, but idx\[1\] = 1 comes after idx\[0\] = 2"),
        ((X, np.array([0, 0, 1, 2**32 + 1]), 3), ValueError, "range"),
    ],
)
def test_messages(arguments, error, words):
    with pytest.raises(error, match=f"(?s)segmented_sum: .*{words}"):
        segmented_sum(*arguments)


def test_other_operands():
    with pytest.raises(ValueError, match="num_segments"):
        segmented_mul(X, jnp.ones(2), IDX, 3)
    with pytest.raises(ValueError, match=r"1-D.*of shape \(M,\), got \(3, 2\).*write x \* y\[idx\]"):
        segmented_mul(X[:, None] * jnp.ones(2), jnp.ones((3, 2)), IDX, 3)
    with pytest.raises(ValueError, match=r"1-D, of shape \(M,\), got \(\)"):
        segmented_mul(X, jnp.float64(1), IDX, 3)
    with pytest.raises(ValueError, match="dtype"):
        segmented_mul(X, jnp.ones(3, "float32"), IDX, 3)
    with pytest.raises(ValueError, match="must fit"):
        segment_ops.segmented_matvec(jnp.ones((4, 2)), jnp.ones((3, 3, 3)), IDX, 3)
    with pytest.raises(ValueError, match="2-D"):
        segment_ops.segmented_matvec(X, jnp.ones((3, 3, 3)), IDX, 3)


def test_traced_num_segments():
    with pytest.raises(TypeError, match="num_segments .* traced"):
        jax.jit(segmented_sum)(X, IDX, 3)
    with pytest.raises(TypeError, match="num_segments .* traced"):
        jax.vmap(lambda m: segmented_sum(X, IDX, m))(jnp.array([3, 3]))
    assert jax.jit(segmented_sum, static_argnames="num_segments")(X, IDX, num_segments=3).shape == (3,)


def test_a_checked_idx_is_checked_against_each_number():
    segmented_sum(X, IDX, 3)
    segmented_sum(X, IDX, 5)
    segmented_sum(X, IDX, 2)  # 2 is padding
    with pytest.raises(ValueError, match="range"):
        segmented_sum(X, IDX, 1)


BAD = IDX.at[3].set(9)
ZERO = np.zeros(4, jax.dtypes.float0)


def pooled(x, idx):
    return segmented_sum(x, idx, 3)


@pytest.mark.parametrize(
    "call",
    [
        pooled,
        lambda x, i: pooled(x, np.asarray(i)),
        lambda x, i: jax.grad(lambda x: pooled(x, i).sum())(x),
        lambda x, i: jax.grad(lambda x, i: pooled(x, i).sum(), (0, 1), allow_int=True)(x, i),
        lambda x, i: jax.vjp(pooled, x, i),
        lambda x, i: jax.jvp(pooled, (x, i), (x, ZERO)),
        lambda x, i: jax.vmap(lambda x: pooled(x, i))(jnp.stack([x, x])),
        lambda x, i: jax.hessian(lambda x: pooled(x, i).sum())(x),
    ],
)
def test_eager_calls_check_idx_below_transforms_of_the_data_too(call):
    with pytest.raises(ValueError, match=r"range .* idx\[3\] = 9"):
        call(X, BAD)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: jax.jit(pooled)(x, i),
        lambda x, i: jax.jit(lambda x: pooled(x, i))(x),
        lambda x, i: jax.jit(lambda x: pooled(x, np.asarray(i)))(x),
        lambda x, i: jax.vmap(pooled)(jnp.stack([x, x]), jnp.stack([i, i]))[1],
        lambda x, i: jax.checkpoint(lambda x: pooled(x, i))(x),
        lambda x, i: jax.lax.scan(lambda c, _: (c, pooled(c, i)), x, None, length=2)[1][1],
        lambda x, i: jax.lax.cond(True, lambda: pooled(x, i), lambda: x[:3]),
    ],
)
def test_what_is_traced_or_wrapped_is_not_checked(call):
    """Constants neither; an element out of range has no segment there."""
    assert call(X, BAD).tolist() == [2, 1, 0]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
def test_keywords_and_numpy(op):
    width = op.widths[3] if len(op.widths) > 3 else (3, 3)
    arrays = {a.name: np.ones(a.shape(4, 3, width), "float32") for a in op.args}
    function = getattr(segment_ops, op.name)
    out = function(**arrays, idx=np.asarray(IDX), num_segments=np.int64(3))
    assert isinstance(out, jax.Array) and out.dtype == "float32"
    assert np.array_equal(out, function(*arrays.values(), IDX, 3))


class Wrapped:
    def __init__(self, array):
        self.array = array

    def __jax_array__(self):
        return self.array


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.short)
def test_objects_that_stand_for_arrays(op):
    width = op.widths[3] if len(op.widths) > 3 else (3, 3)
    arrays = [jnp.ones(a.shape(4, 3, width)) for a in op.args]
    function = getattr(segment_ops, op.name)
    loss = lambda wrap, *a: (function(*map(wrap, a), wrap(IDX), 3) ** 2).sum()  # noqa: E731
    for wrap in (Wrapped, lambda a: a):
        out = jax.value_and_grad(loss, 1)(wrap, *arrays)
        assert jax.tree.map(jnp.array_equal, out, jax.value_and_grad(loss, 1)(lambda a: a, *arrays)) == (True, True)
    with pytest.raises(ValueError, match="range"):
        function(*arrays, Wrapped(IDX.at[3].set(9)), 3)


def test_idx_has_no_gradient():
    grads = jax.grad(lambda x, i: segmented_sum(x, i, 3).sum(), argnums=(0, 1), allow_int=True)(X, IDX)
    assert grads[1].dtype == jax.dtypes.float0
