# SPDX-License-Identifier: Apache-2.0
"""|out - exact| <= 4 eps sum |terms|, also on data made to break it. Exact is math.fsum, or rationals for products."""

import math
from fractions import Fraction

import numpy as np
import pytest
from native.harness import FULL, call, sorted_idx

LENGTHS = [*range(1, 70, 3), 127, 128, 129, 1023, 1025, 4097, 70_001]
HALF = 2.0**-53
KINDS = {
    "normal": lambda g, n: g.standard_normal(n),
    "constant": lambda g, n: np.full(n, 0.1),
    "one, then half ulps": lambda g, n: np.where(np.arange(n) == 0, 1.0, HALF),
    "one, then more than half": lambda g, n: np.where(np.arange(n) == 0, 1.0, 1.5 * HALF),
    "a one in each lane, then half ulps": lambda g, n: np.where(np.arange(n) < 8, 1.0, HALF),
    "60 binades": lambda g, n: g.standard_normal(n) * np.exp2(g.integers(-30, 30, n)),
    "cancelling": lambda g, n: np.concatenate([a := g.standard_normal(n // 2), -a[::-1], np.full(n % 2, 1e-9)]),
}


def error(out, terms, eps):
    """In units of eps sum |terms|."""
    return abs(math.fsum([float(out), *(-terms)])) / (eps * math.fsum(np.abs(terms)))


@pytest.mark.parametrize("suffix", FULL)
@pytest.mark.parametrize("kind", KINDS)
def test_sums(kind, suffix):
    dtype = FULL[suffix]
    g = np.random.default_rng(0)
    eps = np.finfo(dtype).eps
    bound = 4 if dtype is np.float64 else 0.51  # float32: accumulated in float64, rounded once
    pieces = [KINDS[kind](g, n).astype(dtype) for n in LENGTHS]
    idx, _ = sorted_idx(LENGTHS)
    x = np.concatenate(pieces)
    m = len(LENGTHS)
    for k in (1, 3, 5):
        columns = np.stack([x, *[x * dtype(2.0**q) for q in range(1, k)]], 1)
        out = call("sum", {"x": columns}, idx, m, k, threads=2)["out"]
        mean = call("mean", {"x": columns}, idx, m, k, threads=2)["out"]
        for s, piece in enumerate(pieces):
            terms = piece.astype(np.float64)
            for q in range(k):
                assert error(out[s, q] / 2**q, terms, eps) <= bound, (k, len(piece))
                assert error(float(mean[s, q]) / 2**q * len(piece), terms, eps) <= bound + 1, (k, len(piece))


@pytest.mark.parametrize("k", [1, 3, 4, 9])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -0.7, 1e300, 5e-324, 2.3e-308])
def test_the_mean_of_equal_numbers_is_that_number(value, k):
    """Otherwise centred data are noise, and second derivatives are what is made of it."""
    lengths = [*range(1, 301), 100_000]
    idx, _ = sorted_idx(lengths)
    for threads in (1, 2):
        out = call("mean", {"x": np.full((len(idx), k), value)}, idx, len(lengths), k, threads=threads)
        assert (out["out"] == value).all()
        np.testing.assert_allclose(out["sums"][:, 0], np.multiply(lengths, value), rtol=1e-15)


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_means_of_float64_are_rounded_once(kind, k):
    g = np.random.default_rng(1)
    pieces = [KINDS[kind](g, n) for n in LENGTHS]
    idx, _ = sorted_idx(LENGTHS)
    out = call("mean", {"x": np.repeat(np.concatenate(pieces)[:, None], k, 1)}, idx, len(LENGTHS), k, threads=2)["out"]
    for mean, piece in zip(out, pieces, strict=True):
        terms = [Fraction(x) for x in piece.tolist()]
        exact, slack = sum(terms) / len(terms), Fraction(2.0**-90) * sum(map(abs, terms)) / len(terms)
        assert abs(Fraction(mean[0]) - exact) <= Fraction(HALF) * abs(exact) + slack, len(piece)
        assert (mean == mean[0]).all()


def test_a_mean_half_way_between_two_numbers():
    """49 * (1 / 49) is less than 1 in float64."""
    odd = 1 + 2 * HALF
    for k in (1, 3, 4, 9):
        x = np.repeat(np.repeat([odd, odd + 2 * HALF], 49)[:, None], k, 1)
        assert (call("mean", {"x": x}, np.zeros(98, np.int32), 1, k)["out"] == odd + 2 * HALF).all()


@pytest.mark.parametrize("suffix", FULL)
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind, suffix):
    dtype = FULL[suffix]
    g = np.random.default_rng(0)
    eps = float(np.finfo(dtype).eps)
    for n in (1, 2, 7, 8, 33, 64, 129, 1025):
        idx = np.zeros(n, np.int32)
        x, y, u, w = (g.standard_normal((n, 3)).astype(dtype) for _ in range(4))
        x[:, 0] = KINDS[kind](g, n)
        y[:, 0] = 1
        exact_xy = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x.flat, y.flat, strict=True)]
        exact_uw = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(u.flat, w.flat, strict=True)]

        def off(out, terms):
            return float(abs(Fraction(float(out)) - sum(terms)) / sum(map(abs, terms))) / eps

        assert off(call("dot", {"x": x, "y": y}, idx, 1, 3)["out"][0], exact_xy) <= 4
        both = exact_xy + exact_uw
        assert off(call("dot_add", {"x": x, "y": y, "u": u, "w": w}, idx, 1, 3)["out"][0], both) <= 4
        outer = call("outer", {"v": x, "w": y}, idx, 1, 3, 3)["out"][0]
        for k in range(3):
            terms = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x[:, k], y[:, 1], strict=True)]
            assert off(outer[k, 1], terms) <= 4
        squares = [a * a for a in map(Fraction, map(float, x.flat))]
        rms = call("rms_norm", {"x": x}, idx, 1, 3)
        assert off(rms["sum_sq"][0], squares) <= 4
        exact_rms = math.sqrt(sum(squares) / n)
        assert abs(float(rms["out"][0]) - exact_rms) <= 4 * eps * exact_rms


@pytest.mark.parametrize("suffix", FULL)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [3, 4, 20, 1000])
def test_matrices(k, kind, suffix):
    """The terms of a product with a matrix are few or many, and the first may be the largest."""
    dtype = FULL[suffix]
    g = np.random.default_rng(0)
    eps = float(np.finfo(dtype).eps)
    idx = np.zeros(1, np.int32)
    a, b = (KINDS[kind](g, 2 * k).reshape(2, k).T.astype(dtype) for _ in range(2))  # (k, 2)
    ones = np.where(np.arange(k) % 7 == 3, -1, 1).astype(dtype)[None]

    def within(out, *matrices):
        for j in range(2):
            pairs = [xy for c in matrices for xy in zip(c[:, j], ones[0], strict=True)]
            terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in pairs]
            assert abs(Fraction(float(out[0, j])) - sum(terms)) <= 4 * eps * sum(map(abs, terms))

    within(call("matvec", {"v": ones, "a": a[None]}, idx, 1, k, 2)["out"], a)
    within(call("matvec_t", {"w": ones, "a": np.ascontiguousarray(a.T)[None]}, idx, 1, 2, k)["out"], a)
    within(call("matvec_add", {"v": ones, "a": a[None], "w": ones, "b": b[None]}, idx, 1, k, 2)["out"], a, b)


def test_products_of_float32_are_rounded_once():
    """x s + y t where both products round to the same float32: only float64 arithmetic sees the difference."""
    x = np.full((9, 1), 1 + 2.0**-20, np.float32)
    s = np.array([1 + 2.0**-20], np.float32)
    idx = np.zeros(9, np.int32)
    t = np.array([-1], np.float32)
    y = np.full((9, 1), np.float32(float(x[0, 0]) ** 2))
    out = call("mul_add", {"x": x, "s": s, "y": y, "t": t}, idx, 1, 1)["out"]
    assert (out == float(x[0, 0]) ** 2 - float(y[0, 0])).all() and out[0, 0] != 0


@pytest.mark.parametrize("scale", [1e-15, 1e-8, 1.0, 1e8, 1e15])
def test_second_derivative_of_rms_norm_neither_overflows_nor_underflows(scale):
    g = np.random.default_rng(0)
    idx, _ = sorted_idx([5, 300, 1])
    m, n = 3, 306
    x, v = (scale * g.standard_normal((n, 3))).astype(np.float32), g.standard_normal((n, 3)).astype(np.float32)
    grad = np.ones(m, np.float32)
    inv = call("rms_norm", {"x": x}, idx, m, 3)["inv"]
    out = call("rms_norm_double_backward", {"v": v, "g": grad, "x": x, "inv": inv}, idx, m, 3)
    xs, vs, i = x.astype(np.float64), v.astype(np.float64), inv.astype(np.float64)
    inner = np.bincount(idx, (xs * vs).sum(1))
    want = i[idx, None] * (vs - (inner * i)[idx, None] * ((np.bincount(idx) * i)[idx, None] * xs))
    np.testing.assert_allclose(out["gx"], want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
    np.testing.assert_allclose(out["gg"], inner * i, rtol=1e-6)
