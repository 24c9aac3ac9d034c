# SPDX-License-Identifier: Apache-2.0
"""max_norm: the first NaN wins, ties go to the first, and its derivatives live at the argmax alone."""

import numpy as np
import pytest
from native.harness import DTYPES, call, eps, sorted_idx


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("narrow_at", [False, True])
def test_ties_and_nan(narrow_at, k, suffix):
    dtype = DTYPES[suffix]
    lengths = [1, 5, 30, 300, 9000, 70_000, 3]
    idx, _ = sorted_idx(lengths, [1] * 7)
    m = 15
    starts = np.concatenate([[0], np.cumsum(lengths)])
    g = np.random.default_rng(0)
    x = g.integers(-2, 3, (len(idx), k)).astype(dtype)  # few values: many ties
    for nans in (False, True):
        if nans:
            x[starts[3] + 250, 0] = x[starts[3] + 270, 0] = x[starts[5] + 65_000, 0] = np.nan
        squares = (x.astype(np.float64) ** 2).sum(1)
        for threads in (1, 2, 3, 8):
            out = call("max_norm", {"x": x}, idx, m, k, threads=threads, narrow_at=narrow_at)
            assert out["at"].dtype == (np.int32 if narrow_at else np.int64)
            for s in range(7):
                part = squares[starts[s] : starts[s + 1]]
                first = np.flatnonzero(np.isnan(part))
                at = first[0] if len(first) else np.argmax(part)
                assert out["at"][2 * s + 1] == starts[s] + at
                np.testing.assert_equal(out["out"][2 * s + 1], dtype(np.sqrt(part[at])))
            assert (out["at"][::2] == -1).all() and (out["out"][::2] == 0).all()


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 8, 9, 70, 130])
@pytest.mark.parametrize("narrow_at", [False, True])
def test_extremes_of_columns(narrow_at, k, suffix):
    """Where they are, their values, picked again and put back: on one thread and several, in any layout."""
    r = np.random.default_rng(k)
    lengths = [3, 70, 1, 9000 if k < 9 else 500, *[2] * 50]
    idx, m = sorted_idx(lengths, [1] * len(lengths))[0], 2 * len(lengths) + 2
    x = r.integers(-50, 50, (len(idx), k)).astype(DTYPES[suffix])  # few values: many ties
    x[r.random(x.shape) < 0.001] = np.nan
    x[r.random(x.shape) < 0.001] = np.inf
    x[r.random(x.shape) < 0.001] = -np.inf
    layouts = (None, lambda a, place: np.asfortranarray(a))
    for name, sign in (("max", 1), ("min", -1)):
        at = np.full((m, k), -1)
        for s in np.unique(idx):
            rows = np.flatnonzero(idx == s)
            key = sign * x[rows].astype(np.float64)
            at[s] = rows[np.where(np.isnan(key).any(0), np.isnan(key).argmax(0), key.argmax(0))]
        picked = np.where(at >= 0, np.take_along_axis(x, np.maximum(at, 0), 0), x.dtype.type(0))
        placed = np.zeros_like(x)
        s, c = np.nonzero(at >= 0)
        placed[at[s, c], c] = picked[s, c]
        for threads, layout in zip((1, 3, 1, 3), (*layouts, *layouts[::-1]), strict=True):
            how = {"threads": threads, "narrow_at": narrow_at, "layout": layout}
            found = call(name, {"x": x}, idx, m, k, **how)
            np.testing.assert_array_equal(found["at"], at)
            positions = at.astype(np.int32 if narrow_at else np.int64)
            again = call("pick", {"x": x, "at": positions}, idx, m, k, **how)
            back = call("place", {"y": picked, "at": positions}, idx, m, k, **how)
            for a, b in ((found["out"], picked), (again["out"], picked), (back["out"], placed)):
                np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 4])
def test_derivatives(k, suffix):
    dtype = DTYPES[suffix]
    n, m = 9000, 5000
    r = np.random.default_rng(0)
    x, v = (r.standard_normal((n, k)).astype(dtype) for _ in range(2))
    grad = r.standard_normal(m).astype(dtype)
    at = np.full(m, -1)
    at[1::2] = np.sort(r.choice(n, m // 2, replace=False))
    at[7], at[9] = n, 2**40  # no elements
    x[at[11]] = 0
    wide = [a.astype(np.longdouble) for a in (x, v, grad)]
    gx, gg, gx2 = np.zeros((n, k)), np.zeros(m), np.zeros((n, k))
    for s, i in enumerate(at):
        norm = np.sqrt((wide[0][i] ** 2).sum()) if 0 <= i < n else 0
        if norm:
            unit = wide[0][i] / norm
            gx[i] = wide[2][s] * unit
            gg[s] = unit @ wide[1][i]
            gx2[i] = wide[2][s] / norm * (wide[1][i] - unit * (unit @ wide[1][i]))
    bound = 8 * eps(dtype)
    for threads in (1, 2, 3):
        for positions, narrow in ((at, False), (np.where(at > n, n, at).astype(np.int32), True)):
            inputs = {"v": v, "g": grad, "x": x, "at": positions}
            none = np.zeros(n, np.int32)
            second = call("max_norm_double_backward", inputs, none, m, k, threads=threads, narrow_at=narrow)
            del inputs["v"]
            first = call("max_norm_backward", inputs, none, m, k, threads=threads, narrow_at=narrow)
            np.testing.assert_allclose(first["gx"], gx, rtol=bound, atol=bound)
            np.testing.assert_allclose(second["gg"], gg, rtol=bound, atol=bound)
            np.testing.assert_allclose(second["gx"], gx2, rtol=bound, atol=bound * np.abs(gx2).max())


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 8, 9, 31, 64, 65, 200, 4096, 4097, 300_000])
def test_a_row_is_added_as_a_segment_is(k, suffix):
    """The largest norm of a segment of one row is its rms norm, bit for bit, wherever the row is."""
    n = min(600, 3_000_000 // k)
    r = np.random.default_rng(k)
    x = (r.standard_normal((n, k)) * 10.0 ** r.integers(-3, 4, (n, k))).astype(DTYPES[suffix])
    x[n // 2, k // 2] = np.nan
    idx = np.arange(n, dtype=np.int32)

    def norms(name, x, idx, threads=1):
        found = call(name, {"x": x}, idx, len(x), k, threads=threads)
        return found["out"].astype(np.float64)  # NaN is equal to itself there

    for threads in (1, 3):
        np.testing.assert_array_equal(norms("max_norm", x, idx, threads), norms("rms_norm", x, idx))
    np.testing.assert_array_equal(norms("max_norm", x[-1:], idx[:1]), norms("rms_norm", x, idx)[-1:])
    assert call("max_norm", {"x": x}, np.zeros(n, np.int32), 1, k)["at"] == n // 2
