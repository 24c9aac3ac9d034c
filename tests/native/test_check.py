# SPDX-License-Identifier: Apache-2.0
"""The verdict on idx: -1, or the first element out of range, or, all being in range, the first that descends."""

import numpy as np
import pytest
from native.harness import OPS, call, make_inputs, mode_of

from segmentops import native


def verdict(idx, m, threads=1):
    return native.load().check(idx.ctypes.data, len(idx), m, mode_of(idx, threads))


def slow(idx, m):
    bad = np.flatnonzero((idx < 0) | ((idx >= m) & (m >= 0)))
    if len(bad):
        return bad[0]
    down = np.flatnonzero(np.diff(idx) < 0)
    return down[0] + 1 if len(down) else -1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 17, 64, 1000, 40_001])
def test_positions(n, dtype):
    g = np.random.default_rng(n)
    m = max(1, n // 3)
    good = np.sort(g.integers(0, m, n)).astype(dtype)
    ends = np.iinfo(dtype)
    for threads in (1, 3):
        assert verdict(good, m, threads) == verdict(good, -1, threads) == -1
        for at in {0, 1, n // 3, n // 2, n - 2, n - 1} & set(range(n)):
            for value in (-1, m, m + 5, ends.min, ends.max, 0, m - 1):
                idx = good.copy()
                idx[at] = value
                assert verdict(idx, m, threads) == slow(idx, m), (at, value)
                assert verdict(idx, -1, threads) == slow(idx, -1), (at, value)


def test_no_segments():
    assert verdict(np.zeros(0, np.int32), 0) == -1
    assert verdict(np.zeros(1, np.int32), 0) == 0


@pytest.mark.parametrize("name", ["sum", "mul", "matvec", "mul_backward", "max_norm"])
def test_nothing_is_computed_when_the_check_fails(name):
    j = 3 if OPS[name].matrix else 1
    inputs = make_inputs(name, np.float32, 20, 4, 3, j)
    idx = np.repeat(np.arange(4), 5).astype(np.int32)
    assert call(name, inputs, idx, 4, 3, j, check=True)[0] == -1
    idx[12] = 7
    position, outs = call(name, inputs, idx, 4, 3, j, check=True)
    assert position == 12
    for value in outs.values():
        assert (value.reshape(-1).view(np.uint8) == 0xA5).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_count(dtype):
    g = np.random.default_rng(0)
    for n, m in ((0, 3), (1, 1), (100, 7), (100_000, 9), (100_000, 60_000)):
        idx = np.sort(g.integers(0, m, n)).astype(dtype)
        for threads in (1, 2, 3):
            out = np.full(m, -7, np.int32)
            f = native.load().count
            assert f(idx.ctypes.data, out.ctypes.data, n, m, mode_of(idx, threads)) == -1
            np.testing.assert_array_equal(out, np.bincount(idx, minlength=m))
