# SPDX-License-Identifier: Apache-2.0
"""The Warp kernels give the native engine's bits: strided or captured arrays change nothing."""

import numpy as np
import pytest
import warp as wp
from launchers import (
    BOTH,
    HALVES,
    INTERFACE,
    Segments,
    arguments,
    call,
    lengths,
    route,
    same_bits,
    sorted_idx,
    to_warp,
    widths,
)

from segmentops.kernels import launch

DISTRIBUTIONS = {
    "short": (sorted_idx(700, 200), 200),
    "blocks": (lengths(63, 64, 65, 1, 127, 128, 129, 511, 512, 513, 0, 8, 9), 15),
    "supers": (lengths(3, 4095, 4096, 1, 4097, 2), 6),
    "giant": (lengths(*[1] * 50, 9000, *[1] * 50), 101),
    "padding": (np.array([-2, -1, *sorted_idx(300, 9), 9, 12], dtype=np.int32), 9),
}


@pytest.mark.parametrize("scalar", BOTH)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_kernels_against_engine(distribution, scalar):
    idx, m = DISTRIBUTIONS[distribution]
    for name in INTERFACE:
        for width in widths(name):
            same_bits(name, idx, m, width, scalar, ("engine", "kernels"), strided=(False, True))


@pytest.mark.parametrize("scalar", HALVES)
def test_kernels_against_engine_in_half_precision(scalar):
    idx, m = DISTRIBUTIONS["blocks"]
    for name in INTERFACE:
        for width in widths(name):
            same_bits(name, idx, m, width, scalar, ("engine", "kernels"), strided=(False, True))


@pytest.mark.parametrize("scalar", BOTH)
def test_more_than_64_supers(scalar):
    """Supers grow with the segment: 300 001 items are 37 supers of 8192."""
    idx = lengths(5, 300_001, 2)
    for name in ("segmented_sum", "segmented_dot", "segmented_max_norm"):
        for width in widths(name):
            same_bits(name, idx, 3, width, scalar, ("engine", "kernels"))


@pytest.mark.parametrize("scalar", BOTH)
def test_alone_and_in_a_batch(scalar):
    rng = np.random.default_rng(0)
    one = (rng.standard_normal((777, 3)) * 10.0 ** rng.integers(-6, 6, (777, 3))).astype(scalar)
    before = rng.standard_normal((123, 3)).astype(scalar)
    idx = lengths(123, 777)
    with route("kernels"):
        alone = call("segmented_sum", {"x": one}, lengths(777), 1, 3, scalar)["out"][0]
        batch = call("segmented_sum", {"x": np.concatenate([before, one])}, idx, 2, 3, scalar)["out"][1]
    np.testing.assert_array_equal(alone, batch)


# ------------------------------------------------------------------ what the torch binding needs on CUDA
def private(x, idx, index, scalar, m, k, mode=launch.PLAIN):
    """Sums of (N, k) data by the private kernels: any width, scalar type and index type."""
    out = wp.full((m, k), 7.0, dtype=wp.float64 if mode == launch.WIDE else scalar, device="cpu")
    data = wp.array(x, dtype=scalar, device="cpu")
    rows = launch.Rows(data, data.ptr, scalar, data.shape, data.strides)
    target = {"wide": out} if mode == launch.WIDE else {"out": out}
    launch.reduce("sum", (rows,), wp.array(idx, dtype=index, device="cpu"), m, mode=mode, columns=k, **target)
    return out


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9, 16])
def test_any_width_and_int64(k):
    idx, m = DISTRIBUTIONS["supers"]
    x = np.random.default_rng(k).standard_normal((len(idx), k)).astype(np.float32)
    narrow = private(x, idx, wp.int32, wp.float32, m, k).numpy()
    wide = private(x, idx, wp.int64, wp.float32, m, k).numpy()
    np.testing.assert_array_equal(narrow, wide)
    expected = Segments(idx, m).sum(x.astype(np.float64))
    np.testing.assert_allclose(narrow, expected, rtol=1e-6, atol=1e-5)
    for column in range(k if k in (2, 5) else 0):  # each column by itself, as one of three
        three = np.repeat(x[:, column : column + 1], 3, axis=1)
        np.testing.assert_array_equal(private(three, idx, wp.int32, wp.float32, m, 3).numpy()[:, 0], narrow[:, column])


def test_int64_does_not_narrow():
    """2**32 + 1 is not segment 1."""
    idx = np.array([0, 1, 2**32 + 1])
    got = private(np.ones((3, 1), np.float32), idx, wp.int64, wp.float32, 2, 1).numpy()
    np.testing.assert_array_equal(got, [[1], [1]])


def bfloat16(x):
    """float64 to bfloat16 by round to nearest even, as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2**8), exponent - 8)


@pytest.mark.parametrize("scalar, rounds", [(wp.float16, lambda v: v.astype(np.float16)), (wp.bfloat16, bfloat16)])
def test_half_types_round_once(scalar, rounds):
    idx, m = DISTRIBUTIONS["blocks"]
    x = rounds(np.random.default_rng(0).standard_normal((len(idx), 3))).astype(np.float32)
    exact = private(x, idx, wp.int32, scalar, m, 3, mode=launch.WIDE).numpy()
    np.testing.assert_array_equal(exact, private(x, idx, wp.int32, wp.float32, m, 3, mode=launch.WIDE).numpy())
    got = private(x, idx, wp.int32, scalar, m, 3)
    got = got.numpy().astype(np.float64) if scalar is wp.float16 else wp_to_float(got)
    np.testing.assert_array_equal(got, rounds(exact).astype(np.float64))


def wp_to_float(array):
    raw = np.frombuffer(bytes(array.numpy().tobytes()), dtype=np.uint16).reshape(array.shape)
    return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def test_rounding_to_half_is_not_done_twice():
    """1 + 2**-11 + 2**-30 rounds up; by way of float32 it would be a tie and round down."""
    x = np.array([[1.0], [2.0**-11], [2.0**-24 * 2.0**-6]])
    halves = np.array([[1.0], [2.0**-11], [2.0**-24]], dtype=np.float16)
    assert float(np.float16(x.sum())) == 1 + 2.0**-10
    many = np.concatenate([halves, np.zeros((61, 1), np.float16)])
    got = private(many, np.zeros(64, np.int32), wp.int32, wp.float16, 1, 1).numpy()
    assert got[0, 0] == 1 + 2.0**-10


def test_negative_zero():
    idx = lengths(2, 1)
    with route("kernels"):
        got = call("segmented_sum", {"x": np.full((3, 1), -0.0)}, idx, 3, 1, np.float32)["out"]
    assert not np.signbit(got).any()


def test_arguments_are_listed_once():
    for name in INTERFACE:
        names = [argument for argument, _, _ in arguments(name)]
        assert len(set(names)) == len(names)
    assert to_warp(np.ones(2), "S", np.float32).dtype is wp.float32
