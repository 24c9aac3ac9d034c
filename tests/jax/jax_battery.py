# SPDX-License-Identifier: Apache-2.0
"""The table of `oracles` in JAX terms, and the ops as compositions of jax.ops: the oracle for transforms."""

import functools
import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import OPS, Op, Width

from segmentops.jax import segment_ops

# Empty first, middle and last segments, runs across block sizes, one segment, none.
LENGTHS = {
    "mixed": (3, 1, 0, 2, 5),
    "empty": (0, 0, 4, 0, 1, 0, 0, 2, 0),
    "single": (6,),
    "sizes": (7, 8, 9, 0, 15, 16, 17, 63, 64, 65, 1, 130),
    "no elements": (0, 0, 0),
    "nothing": (),
}
SMALL = LENGTHS["empty"]


@dataclass(frozen=True)
class Case:
    op: Op
    width: Width
    dtype: str

    def __str__(self):
        return f"{self.op.short}-{'x'.join(map(str, self.width)) or 'scalar'}-{self.dtype}"

    def __call__(self, *arguments):
        return getattr(segment_ops, self.op.name)(*arguments)

    def composed(self, *arguments):
        return COMPOSITIONS[self.op.name](*arguments)

    def random(self, arrays, n, m, seed=0):
        rng = np.random.default_rng(zlib.crc32(self.op.name.encode()) + seed)
        return [jnp.asarray(rng.normal(size=a.shape(n, m, self.width)), self.dtype) for a in arrays]

    def inputs(self, n, m, seed=0):
        return self.random(self.op.args, n, m, seed)

    def weights(self, n, m, seed=1):
        """Random weights for the output: with equal ones many a wrong gradient is right."""
        return self.random([self.op.out], n, m, seed)[0]

    @property
    def eps(self):
        return float(jnp.finfo(self.dtype).eps)


def index(lengths, dtype="int32", padding=0):
    """The idx of segments of these lengths; then elements of padding."""
    values = np.repeat(np.arange(len(lengths)), lengths)
    return jnp.asarray(np.append(values, [len(lengths)] * padding), dtype)


def cases(dtypes=("float32", "float64"), widths=None):
    found = [
        Case(op, width, dtype)
        for op in OPS
        for width in ((op.widths if len(op.widths) == 3 else ((), (3,), (2, 3)))[:widths])
        for dtype in dtypes
    ]
    return pytest.mark.parametrize("case", found, ids=str)


def assert_close(got, expected, tolerance=1e-10):
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance), got, expected)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ------------------------------------------------------------------ compositions
# `where` twice, so that no infinity is multiplied by the zero that should hide it.


def _columns(s, x):
    return s.reshape(s.shape + (1,) * (x.ndim - s.ndim))


def _flat(x):
    return x.sum(tuple(range(1, x.ndim)))


def _root(square):
    there = square != 0
    return jnp.where(there, jnp.sqrt(jnp.where(there, square, 1.0)), 0.0)


def _sum(x, idx, m):
    return jax.ops.segment_sum(x, idx, m)


def _gather(y, idx):
    return y.at[idx].get(mode="fill", fill_value=0)


def _counts(x, idx, m):
    return jnp.maximum(_sum(jnp.ones(idx.shape, x.dtype), idx, m), 1)


def _mean(x, idx, m):
    return _sum(x, idx, m) / _columns(_counts(x, idx, m), x)


def _dot(x, y, idx, m):
    return _sum(_flat(x * y), idx, m)


def _rms_norm(x, idx, m):
    return _root(_dot(x, x, idx, m) / _counts(x, idx, m))


def _max_norm(x, idx, m):
    if x.shape[0] == 0:
        return jnp.zeros(m, x.dtype) + x.sum() * 0
    square = _flat(x * x)
    fixed = jax.lax.stop_gradient(square)
    largest = jax.ops.segment_max(fixed, idx, m)
    tied = jnp.where(fixed == _gather(largest, idx), jnp.arange(x.shape[0]), x.shape[0])
    at = jax.ops.segment_min(tied, idx, m)
    there = at < x.shape[0]
    return _root(jnp.where(there, square[jnp.where(there, at, 0)], 0.0))


def _extreme(sign):
    def run(x, idx, m):
        if x.shape[0] == 0:
            return _sum(x, idx, m)
        fixed = sign * jax.lax.stop_gradient(x)
        best = jax.ops.segment_max(fixed, idx, m)
        tied = jnp.where(fixed == _gather(best, idx), _columns(jnp.arange(x.shape[0]), x), x.shape[0])
        at = jax.ops.segment_min(tied, idx, m)
        there = at < x.shape[0]
        return jnp.where(there, jnp.take_along_axis(x, jnp.where(there, at, 0), 0), 0.0)

    return run


def _mul(x, y, idx, m):
    return x * _columns(_gather(y, idx), x)


def _matvec(v, a, idx, m):
    return (v[:, :, None] * _gather(a, idx)).sum(1)


COMPOSITIONS = {
    "segmented_sum": _sum,
    "segmented_mean": _mean,
    "segmented_dot": _dot,
    "segmented_rms_norm": _rms_norm,
    "segmented_max_norm": _max_norm,
    "segmented_max": _extreme(1),
    "segmented_min": _extreme(-1),
    "segmented_mul": _mul,
    "segmented_matvec": _matvec,
}


def loss(function, weights, idx, m):
    """A scalar function of the arrays, nonlinear also where the op is linear."""

    def of(*arrays):
        return (weights * jnp.sin(function(*arrays, idx, m))).sum()

    return of


@functools.cache
def argnums(case):
    return tuple(range(len(case.op.args)))
