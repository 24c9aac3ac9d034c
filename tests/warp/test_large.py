# SPDX-License-Identifier: Apache-2.0
"""Positions in the kernels have 32 bits: the largest jobs that they take, in little memory.

Arrays of stride 0 repeat one number, or one row, as often as needed.
"""

import numpy as np
import pytest
import warp as wp

from segmentops.kernels import launch, reduce
from segmentops.kernels.launch import MAX_SCALARS, SUPER, Rows

LARGEST = (1 << 31) - 1


def repeated(value, shape, dtype=wp.float32):
    """`Rows` of one number."""
    base = wp.full(1, value, dtype=dtype, device="cpu")
    return Rows(base, base.ptr, dtype, shape, (0,) * len(shape))


def constant(value, n):
    """n times one number, for idx."""
    base = wp.full(1, value, dtype=wp.int32, device="cpu")
    array = wp.array(ptr=base.ptr, dtype=wp.int32, shape=(n,), strides=(0,), device="cpu", copy=False)
    array._ref = base
    return array


def starts(n, per):
    """Where in `part` the value of each super of a segment of n elements of `per` scalars is."""
    items = n * per
    size = SUPER
    while size < -(-items // 64):
        size *= 2
    return [number * size // SUPER * 2 + min(number, 1) for number in range(-(-items // size))]


@pytest.mark.parametrize("n, per", [(2147, 1_000_000), (MAX_SCALARS, 1), (3, MAX_SCALARS // 3), (1, MAX_SCALARS)])
def test_supers_of_a_segment_as_long_as_possible(n, per):
    """Only `combine`, on supers that are the powers of two: every one is added, once, from where it is."""
    at = starts(n, per)
    assert 1 < len(at) <= 64 and n * per <= MAX_SCALARS
    part = np.full((2 * (n * per // SUPER + 1), 1, 2), np.nan)
    part[at, 0] = [(2.0**k, 0.0) for k in range(len(at))]
    idx, device = constant(0, n), wp.get_device("cpu")
    out = wp.zeros((2, 1), dtype=wp.float64, device="cpu")
    scratch = wp.array(part, dtype=wp.vec2d, device="cpu")
    kernel = reduce.combine("sum", "f64", "i32")["combine"]
    rows = Rows(out, out.ptr, wp.float64, (2, 1), (8, 8))
    arguments = [idx, n, 2, per, launch.PLAIN, rows, None, None, None, None, scratch]
    launch._launch(kernel, (n * per // SUPER + 1, 1), arguments, device)
    np.testing.assert_array_equal(out.numpy().ravel(), [sum(2.0**k for k in range(len(at))), 0.0])


@pytest.mark.parametrize("before", [0, 1])
def test_a_segment_as_long_as_possible(before):
    """All kernels of a reduction: the last of 64 supers ends beyond 2**31."""
    n = MAX_SCALARS
    assert n + SUPER == LARGEST
    idx = constant(before, n)
    out = wp.full((2, 1), 7.0, dtype=wp.float64, device="cpu")
    rows = Rows(out, out.ptr, wp.float64, (2, 1), (8, 8))
    launch.reduce("sum", (repeated(1.0, (n, 1)),), idx, 2, mode=launch.WIDE, wide=rows)
    np.testing.assert_array_equal(out.numpy().ravel(), [0, n] if before else [n, 0])


@pytest.mark.parametrize("shape", [(MAX_SCALARS + 1, 1), (2, MAX_SCALARS // 2 + 1), (1, MAX_SCALARS + 1)])
def test_too_many_scalars(shape):
    idx = constant(0, shape[0])
    out = wp.zeros((1, 1), dtype=wp.float32, device="cpu")
    rows = Rows(out, out.ptr, wp.float32, (1, 1), (4, 4))
    for term, mode in (("dot", launch.PLAIN), ("max", launch.NORM)):
        data = (repeated(1.0, shape),) * (2 if term == "dot" else 1)
        if term == "max" and shape[0] == 2:
            continue  # each row is short enough
        with pytest.raises(ValueError, match=str(MAX_SCALARS)):
            launch.reduce(term, data, idx, 1, mode=mode, flat=term == "dot", out=rows)
