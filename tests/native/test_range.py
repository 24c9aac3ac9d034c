# SPDX-License-Identifier: Apache-2.0
"""Any idx whatever: nothing outside the arrays is touched, an element without a segment counts for nothing, its NaN
too; NaN and inf stay in their segment. (`call` surrounds every output with guard zones and fills it with poison.)"""

import numpy as np
import pytest
from native.harness import (
    DTYPES,
    OPS,
    at_the_edge,
    call,
    eps,
    expected,
    make_inputs,
    same_bits,
    sorted_idx,
)

WITH_IDX = list(OPS)
SHAPES = {name: [(3, 3), (2, 5)] if op.matrix else [(1, 1), (3, 1), (6, 1)] for name, op in OPS.items()}
EVERY = [pytest.param(name, k, j, id=f"{name}-{k}-{j}") for name in OPS for k, j in SHAPES[name]]


def near(got, want, dtype, **kwargs):
    for key, value in got.items():
        scale = np.abs(want[key]).max(initial=1e-30)
        bound = 16 * eps(dtype)
        value = value.astype(np.float64)
        np.testing.assert_allclose(value, want[key].astype(np.float64), rtol=bound, atol=bound * scale, err_msg=key)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name, k, j", EVERY)
def test_elements_without_a_segment_are_ignored(name, k, j, suffix):
    dtype = DTYPES[suffix]
    g = np.random.default_rng(3)
    for n, wide in ((12, False), (12, True), (3000, False), (3000, True)):
        m = max(1, n // 5)
        idx = np.sort(g.integers(-m, 2 * m, n)).astype(np.int64 if wide else np.int32)
        if wide:  # far away: differences that do not fit into int32, and the ends of int64
            idx[idx < -m // 2] -= 2**40
            idx[idx > 3 * m // 2] += 2**33
            idx[0], idx[-1] = -(2**63), 2**63 - 1
        inputs = make_inputs(name, dtype, n, m, k, j)
        outside = (idx < 0) | (idx >= m)
        for key, spec in OPS[name].inputs.items():
            if spec.startswith("n"):
                inputs[key][outside] = np.nan
        clean = {q: np.where(np.isnan(x), 0, x).astype(x.dtype) for q, x in inputs.items()}
        want = expected(name, clean, idx, m)
        for threads in (1, 2, 3):
            near(call(name, inputs, idx, m, k, j, threads=threads), want, dtype)


@pytest.mark.parametrize("name, k, j", EVERY)
def test_unsorted_idx_is_right_element_wise_and_harmless_elsewhere(name, k, j):
    g = np.random.default_rng(4)
    for wide in (False, True):
        kind = np.int64 if wide else np.int32
        for n in (5, 700, 5000):
            m = n // 3 + 1
            inputs = make_inputs(name, np.float32, n, m, k, j)
            for idx in (
                g.integers(np.iinfo(kind).min, np.iinfo(kind).max, n, dtype=kind),
                g.integers(-3, m + 3, n).astype(kind),
                np.where(np.arange(n) % 50 < 25, 2**31 - 1, -(2**31)).astype(kind),
                np.repeat(g.integers(0, m, n // 4 + 1), 4)[:n].astype(kind),
            ):
                for threads in (1, 2, 8):
                    out = call(name, inputs, idx, m, k, j, threads=threads)
                    if not OPS[name].reduces:
                        near(out, expected(name, inputs, idx, m), np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_inf_and_nan_stay_in_their_segment(k, suffix, threads):
    dtype = DTYPES[suffix]
    lengths = [200, 3, 190, 7, 5000, 64, 1]
    idx, _ = sorted_idx(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    x = np.random.default_rng(0).standard_normal((len(idx), k)).astype(dtype)
    x[10, 0], x[250, 0], x[starts[3] + 6, 0], x[starts[4] + 4999, 0] = np.inf, np.nan, -np.inf, np.inf
    for name in ("sum", "mean"):
        out = call(name, {"x": x}, idx, 7, k, threads=threads)["out"]
        assert out[0, 0] == np.inf and np.isnan(out[2, 0]) and out[3, 0] == -np.inf and out[4, 0] == np.inf
        assert np.isfinite(out[[1, 5, 6]]).all() and np.isfinite(out[:, 1:]).all()
    dots = call("dot", {"x": x, "y": x}, idx, 7, k, threads=threads)["out"]
    assert np.isnan(dots[2]) and (dots[[0, 3, 4]] == np.inf).all() and np.isfinite(dots[[1, 5, 6]]).all()
    rms = call("rms_norm", {"x": x}, idx, 7, k, threads=threads)
    assert np.isnan(rms["inv"][2]) and (rms["inv"][[0, 3, 4]] == 0).all() and np.isfinite(rms["out"][[1, 5, 6]]).all()
    product = call("mul", {"x": x, "s": np.ones(7, dtype)}, idx, 7, k, threads=threads)["out"]
    np.testing.assert_array_equal(product.astype(np.float64), x.astype(np.float64))


@pytest.mark.parametrize("suffix", DTYPES)
def test_a_finite_sum_whose_partial_sums_overflow_stays_what_the_plain_sum_says(suffix):
    big = np.finfo(np.float64).max
    x = np.array([[big], [big], [1.0]])
    assert call("sum", {"x": x}, np.zeros(3, np.int32), 1, 1)["out"][0, 0] == np.inf
    x = np.full((70_000, 1), np.finfo(np.float32).max, np.float32)
    assert call("sum", {"x": x}, np.zeros(70_000, np.int32), 1, 1)["out"][0, 0] == np.inf


@pytest.mark.parametrize("suffix", DTYPES)
def test_zero_segments(suffix):
    """An all-zero segment of rms_norm and max_norm: value 0, derivatives 0."""
    dtype = DTYPES[suffix]
    idx, _ = sorted_idx([4, 3, 70])
    x = np.zeros((77, 3), dtype)
    ones = np.ones((77, 3), dtype)
    rms = call("rms_norm", {"x": x}, idx, 3, 3)
    assert not rms["out"].any() and not rms["inv"].any()
    grad = np.ones(3, dtype)
    second = call("rms_norm_double_backward", {"v": ones, "g": grad, "x": x, "inv": rms["inv"]}, idx, 3, 3)
    assert not second["gg"].any() and not second["gx"].any()
    largest = call("max_norm", {"x": x}, idx, 3, 3)
    assert not largest["out"].any() and (largest["at"] == [0, 4, 7]).all()


def test_sum_of_negative_zeros_is_zero():
    for k in (1, 3, 5):
        for n in (1, 9, 100, 5000):
            out = call("sum", {"x": np.full((n, k), -0.0)}, np.zeros(n, np.int32), 1, k)["out"]
            assert not np.signbit(out).any()


def test_reads_stay_inside():
    """Inputs and outputs that end where the page ends, before one that may not be touched."""
    g = np.random.default_rng(0)
    for name, o in OPS.items():
        for dtype in DTYPES.values():
            for k, j in SHAPES[name] + ([(5, 17), (1, 1)] if o.matrix else [(2, 1), (9, 1)]):
                for n in (1, 3, 8, 13, 70, 4200):
                    m = max(1, n // 7)
                    idx = np.sort(g.integers(0, m, n)).astype(np.int64 if n % 2 else np.int32)
                    inputs = make_inputs(name, dtype, n, m, k, j)
                    want = call(name, inputs, idx, m, k, j)
                    got = call(name, inputs, idx, m, k, j, threads=1 + (n > 100), place=at_the_edge)
                    assert all(same_bits(got[key], want[key]) for key in want), (name, n, k, j)
