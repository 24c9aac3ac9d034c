# SPDX-License-Identifier: Apache-2.0
"""float16 and bfloat16: every number read and written as it is, one rounding, and no counter in half precision.

What all functions have in common (values, bits, range) is tested with the other types.
"""

import math

import ml_dtypes
import numpy as np
import pytest
from native.harness import HALF, OPS, call, make_inputs, rounded, same_bits, sorted_idx

from segmentops import native
from segmentops.native import _engine

every_half = pytest.mark.parametrize("suffix", HALF)


def every_number(dtype):
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        return x[~np.isnan(x)]


@every_half
@pytest.mark.parametrize("k", [1, 3, 5])
def test_every_number_is_read_and_written_as_it_is(k, suffix):
    x = every_number(HALF[suffix])
    x = np.concatenate([x, x[: -len(x) % 15]]).reshape(-1, k)
    m = len(x)
    one = np.ones(m, x.dtype)
    for idx in (np.arange(m, dtype=np.int32), np.arange(m, dtype=np.int64)):
        inputs = {"x": x, "s": one}
        assert same_bits(call("mul", inputs, idx, m, k)["out"], x)
        assert same_bits(call("broadcast", {"y": x}, idx, m, k)["out"], x)
        out = call("sum", {"x": x}, idx, m, k)["out"]
        np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64))
        assert not np.signbit(out[x == 0]).any()
        gaps = call("sum", {"x": x}, 3 * idx, 3 * m, k)["out"]
        assert same_bits(gaps[::3], out) and not gaps[1::3].any() and not gaps[2::3].any()


def near_ties(dtype):
    """Three numbers a segment, whose sum is a number in the middle between two neighbours, or close beside it."""
    x = every_number(dtype)
    x = x[np.isfinite(x) & (x != 0)]
    a = np.random.default_rng(0).choice(x, 5000).astype(np.float64)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    step = np.maximum(np.spacing(np.abs(a)) * 2.0**52 * float(ml_dtypes.finfo(dtype).eps), tiny)
    step = np.exp2(np.floor(np.log2(step)))
    far = np.exp2(-np.random.default_rng(1).integers(1, 30, len(a)))
    third = [0 * a, step * far, -step * far, 0 * a + tiny, 0 * a - tiny]
    rows = [np.stack([a, s * step / 2, t], 1) for s in (1, -1) for t in third]
    return np.concatenate(rows).astype(dtype)


@every_half
def test_a_sum_is_rounded_once(suffix):
    dtype = HALF[suffix]
    rows = near_ties(dtype)
    wide = rows.astype(np.float64)
    want = rounded([math.fsum(row) for row in wide], dtype)
    plain = rounded(np.float32(wide.sum(1)), dtype)
    assert (want != plain).sum() > 100  # rounded by way of float32 they would be others
    idx, _ = sorted_idx([3] * len(rows))
    for k in (1, 3, 9):  # three ways to write
        x = np.repeat(rows.reshape(-1, 1), k, axis=1)
        for stride in (1, 2):
            out = call("sum", {"x": x}, stride * idx, stride * len(rows), k, threads=2)["out"][::stride]
            assert same_bits(out, np.repeat(want.reshape(-1, 1), k, axis=1) + dtype(0))
    one = np.ones((len(rows), 1), dtype)
    columns = [np.ascontiguousarray(rows[:, q : q + 1]) for q in range(3)]
    idx = np.arange(len(rows), dtype=np.int32)
    mat = rows.reshape(-1, 3, 1)  # every sum as a product with a matrix, and as x s + y t where two numbers will do
    out = call("matvec", {"v": np.ones((len(rows), 3), dtype), "a": mat}, idx, len(rows), 3)["out"]
    np.testing.assert_array_equal(out[:, 0].astype(np.float64), want.astype(np.float64))
    two = columns[0].astype(np.float64)[:, 0] + columns[1].astype(np.float64)[:, 0]
    parts = {"x": columns[0], "s": one[:, 0], "y": columns[1], "t": one[:, 0]}
    out = call("mul_add", parts, idx, len(rows), 1)["out"]
    np.testing.assert_array_equal(out[:, 0].astype(np.float64), rounded(two, dtype).astype(np.float64))


@every_half
def test_a_product_is_rounded_once(suffix):
    dtype = HALF[suffix]
    g = np.random.default_rng(0)
    x = every_number(dtype)
    x = x[np.isfinite(x)]
    a, b = g.choice(x, 40_000), g.choice(x, 40_000)
    want = rounded(a.astype(np.float64) * b.astype(np.float64), dtype)
    idx = np.arange(len(a), dtype=np.int32)
    assert same_bits(call("mul", {"x": a.reshape(-1, 1), "s": b}, idx, len(a), 1)["out"][:, 0], want)
    dots = call("dot", {"x": a.reshape(-1, 1), "y": b.reshape(-1, 1)}, idx, len(a), 1)["out"]
    np.testing.assert_array_equal(dots.astype(np.float64), want.astype(np.float64))


@pytest.fixture(scope="module")
def portable():
    """The core functions as they are where the processor converts nothing."""
    return _engine.functions("half_core", {"SEG_PORTABLE": "1"})


@every_half
def test_without_conversions_of_the_processor_the_bits_are_the_same(portable, suffix, monkeypatch):
    dtype = HALF[suffix]
    numbers = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(-1, 1)
    rows = near_ties(dtype).reshape(-1, 1)
    identity, threes = np.arange(2**16, dtype=np.int32), sorted_idx([3] * (len(rows) // 3))[0]
    m = len(rows) // 3

    def everything():
        return [
            call("mul", {"x": numbers, "s": np.full(2**16, 1.5, dtype)}, identity, 2**16, 1)["out"],
            call("sum", {"x": numbers}, identity, 2**16, 1)["out"],
            call("sum", {"x": rows}, threes, m, 1)["out"],
            call("sum", {"x": np.repeat(rows, 3, axis=1)}, threes, m, 3)["out"],
            call("rms_norm", {"x": rows}, threes, m, 1)["out"],
        ]

    here = everything()
    with monkeypatch.context() as patch:
        patch.setattr(native, "load", lambda: type("Portable", (), {k: staticmethod(f) for k, f in portable.items()}))
        there = everything()
    for a, b in zip(here, there, strict=True):
        nan = np.isnan(a.astype(np.float64))
        assert (nan == np.isnan(b.astype(np.float64))).all() and same_bits(a[~nan], b[~nan])


@every_half
def test_70_000_elements_are_counted(suffix):
    dtype = HALF[suffix]
    n = 70_000
    idx = np.zeros(n, np.int32)
    ones = np.ones((n, 1), dtype)
    mean = call("mean", {"x": ones}, idx, 1, 1)
    assert mean["out"] == 1 and mean["counts"] == n
    assert (call("spread", {"y": np.ones((1, 1), dtype)}, idx, 1, 1)["out"] == rounded(1 / n, dtype)).all()
    rms = call("rms_norm", {"x": ones}, idx, 1, 1)
    assert rms["out"] == 1 and rms["inv"].dtype == np.float32 and rms["inv"] == np.float32(1 / n)
    inputs = {"g": np.ones(1, dtype), "x": ones, "inv": rms["inv"]}
    assert (call("rms_norm_backward", inputs, idx, 1, 1)["gx"] == rounded(np.float32(1 / n), dtype)).all()
    alternating = (np.arange(n) % 2).astype(dtype).reshape(-1, 1)
    for length in (512, 1024, n):
        assert call("mean", {"x": alternating[:length]}, idx[:length], 1, 1)["out"] == 0.5


@every_half
@pytest.mark.parametrize("k", [1, 2, 17, 34, 128, 500, 512])
def test_wide_rows(k, suffix):
    dtype = HALF[suffix]
    idx, _ = sorted_idx([1, 9, 0, 70])
    for name, op in OPS.items():
        if op.matrix and k > 40:
            continue
        j = 3 if op.matrix else 1
        inputs = make_inputs(name, dtype, len(idx), 4, k, j)
        want = op.define(idx, 4, **{key: x.astype(np.float64) for key, x in inputs.items()})
        for threads in (1, 3):
            out = call(name, inputs, idx, 4, k, j, threads=threads)
            for key, value in out.items():
                if value.dtype == dtype:
                    np.testing.assert_array_equal(
                        value.astype(np.float64), rounded(want[key], dtype).astype(np.float64), err_msg=f"{name} {key}"
                    )
