# SPDX-License-Identifier: Apache-2.0
"""|out - exact| <= 4 eps sum|terms|, for every reduction and every length, on data made to break it.

The exact sums are rational: float64 terms, products split into two of them, added by `math.fsum` together with
the result, so that the error is known to a rounding. One segment a test: that others change nothing is the
business of test_bits.
"""

import math
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import OPS, excess, split_products
from torch_battery import DTYPES

from segmentops.torch import segment_ops as ops

getcontext().prec = 60
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 17, 63, 64, 65, 66, 127, 129, 1000, 4096, 4097, 20_000)


def half_ulp(dtype):
    return torch.finfo(dtype).eps / 2


# Each: length, dtype, generator -> float64 numbers, rounded to the dtype afterwards.
DATA = {
    "random": lambda n, u, g: g.standard_normal(n),
    "equal": lambda n, u, g: np.full(n, 0.1),
    "one, then half ulps": lambda n, u, g: np.where(np.arange(n) == 0, 1.0, u),
    "one, then more than half ulps": lambda n, u, g: np.where(np.arange(n) == 0, 1.0, 1.5 * u),
    "half ulps, one every 64": lambda n, u, g: np.where(np.arange(n) % 64 == 63, 1.0, 1.5 * u),
    "sixty powers of two": lambda n, u, g: g.standard_normal(n) * np.exp2(g.integers(-30, 30, n)),
    "cancelling": lambda n, u, g: _cancelling(g.standard_normal(n) * np.exp2(g.integers(-30, 30, n))),
    "growing": lambda n, u, g: np.exp2(np.minimum(np.arange(n), 50.0)) * (1 + u),
}
every_data = pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())


def _cancelling(a):
    half = len(a) // 2
    return np.concatenate([a[:half], -a[:half][::-1], np.full(len(a) - 2 * half, 1e-9)])


def numbers(data, n, dtype, seed=0):
    g = np.random.default_rng(seed + n)
    return torch.from_numpy(data(n, half_ulp(dtype), g)).to(dtype)


def signs(n, dtype):
    g = np.random.default_rng(n)
    return torch.from_numpy(g.standard_normal(n)).to(dtype)


def products(*pairs):
    """The exact terms of a sum of products, and the sum of their absolute values."""
    terms, size = [], 0.0
    for a, b in pairs:
        high, low = split_products(a.double().numpy(), b.double().numpy())
        terms += [*high.ravel().tolist(), *low.ravel().tolist()]
        size += math.fsum(np.abs(high).ravel().tolist())
    return terms, size


def singles(x):
    terms = x.double().flatten().tolist()
    return terms, math.fsum(map(abs, terms))


def assert_accurate(out, terms, size, count=1):
    """4 eps of the sum of |terms|; float32 is rounded once from a float64 sum, so half an ulp and a trace."""
    out, dtype = float(out), out.dtype
    error = excess(out, terms, count)
    assert error <= 4 * torch.finfo(dtype).eps * size, error / (torch.finfo(dtype).eps * size)
    if dtype == torch.float32:
        exact = abs(math.fsum(terms))
        smallest = 2.0**-150 * count
        assert error <= exact * 2.0**-24 * (1 + 2.0**-24) + smallest + 200 * 2.0**-53 * size, (error, exact)


def one_segment(n, lead=0):
    """idx of a segment of n elements behind `lead` segments of one."""
    return torch.cat([torch.arange(lead), torch.full((n,), lead)]).int(), lead + 1


# ------------------------------------------------------------------ values
@every_dtype
@every_data
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_sum_and_mean(dtype, data, width):
    for n in LENGTHS:
        columns = [numbers(data, n, dtype, seed) for seed in range(width)]
        columns[1:2] = [c.flip(0) for c in columns[1:2]]
        x = columns[0] if width == 1 else torch.stack(columns, 1)
        idx, m = one_segment(n)
        total, mean = ops.segmented_sum(x, idx, m).view(-1), ops.segmented_mean(x, idx, m).view(-1)
        for k, column in enumerate(columns):
            terms, size = singles(column)
            assert_accurate(total[k], terms, size)
            assert_accurate(mean[k], terms, size, n)


@every_dtype
@every_data
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_dot(dtype, data, width):
    for n in LENGTHS:
        if n * width > 20_000:
            continue
        x, y = numbers(data, n * width, dtype).view(n, width), signs(n * width, dtype).view(n, width)
        idx, m = one_segment(n)
        for a, b in ((x, y), (x, x.flip(0)), (x, x)):
            out = ops.segmented_dot(a, b, idx, m)[0] if width > 1 else ops.segmented_dot(a[:, 0], b[:, 0], idx, m)[0]
            assert_accurate(out, *products((a, b)))


def assert_root_accurate(out, squares, count, eps):
    """The square root of squares / count, to sixty digits; all its terms are positive."""
    exact = (Decimal(squares.numerator) / Decimal(squares.denominator) / count).sqrt()
    assert abs(Decimal(float(out)) - exact) <= 4 * Decimal(eps) * exact


@every_dtype
@every_data
@pytest.mark.parametrize("width", [1, 3, 5])
def test_norms(dtype, data, width):
    eps = torch.finfo(dtype).eps
    for n in LENGTHS:
        if n > 4097:
            continue
        x = numbers(data, n * width, dtype).view(n, width)
        idx, m = one_segment(n)
        rows = [sum(Fraction(v) ** 2 for v in row) for row in x.double().tolist()]
        assert_root_accurate(ops.segmented_rms_norm(x, idx, m)[0], sum(rows), n, eps)
        assert_root_accurate(ops.segmented_max_norm(x, idx, m)[0], max(rows), 1, eps)


@every_dtype
@every_data
def test_long_rows(dtype, data):
    """Few elements, wide: the scalars of a row are terms like any others."""
    eps = torch.finfo(dtype).eps
    for k in (34, 129, 1091, 4097):
        x, y = numbers(data, 2 * k, dtype).view(2, k), signs(2 * k, dtype).view(2, k)
        idx, m = one_segment(2)
        assert_accurate(ops.segmented_dot(x, y, idx, m)[0], *products((x, y)))
        rows = [sum(Fraction(v) ** 2 for v in row) for row in x.double().tolist()]
        assert_root_accurate(ops.segmented_rms_norm(x, idx, m)[0], sum(rows), 2, eps)
        assert_root_accurate(ops.segmented_max_norm(x, idx, m)[0], max(rows), 1, eps)


@every_dtype
@pytest.mark.parametrize("kind", ["equal", "one, then half ulps", "half ulps, one every 64", "cancelling"])
@pytest.mark.parametrize("n", [70_001, 1_000_003])
def test_long_segments(dtype, kind, n):
    x = numbers(DATA[kind], n, dtype)
    for lead in (0, 7):
        idx, m = one_segment(n, lead)
        padded = torch.cat([x.new_full((lead,), 1e30), x])
        terms, size = singles(x)
        assert_accurate(ops.segmented_sum(padded, idx, m)[lead], terms, size)
        assert_accurate(ops.segmented_mean(padded, idx, m)[lead], terms, size, n)
    y = signs(n, dtype)
    idx, m = one_segment(n)
    assert_accurate(ops.segmented_dot(x, y, idx, m)[0], *products((x, y)))


@every_dtype
def test_matvec(dtype):
    """The value and the gradient of v: sums over k and over j."""
    idx = torch.arange(2, dtype=torch.int32)
    for data in DATA.values():
        for k in (4, 1000):
            v, a = numbers(data, 2 * k, dtype).view(2, k), signs(2 * k * 3, dtype).view(2, k, 3)
            out = ops.segmented_matvec(v, a, idx, 2)
            zeros = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
            ops.segmented_matvec(zeros, a.mT.contiguous(), idx, 2).backward(v)
            for i in range(2):
                for j in range(3):
                    assert_accurate(out[i, j], *products((v[i], a[i, :, j])))
                    assert_accurate(zeros.grad[i, j], *products((v[i], a[i, :, j])))


@every_dtype
def test_products_are_rounded_once(dtype):
    """mul is one multiplication: not a bit of freedom."""
    x, s = numbers(DATA["random"], 3000, dtype).view(1000, 3), signs(10, dtype)
    idx = torch.arange(10, dtype=torch.int32).repeat_interleave(100)
    assert torch.equal(ops.segmented_mul(x, s, idx, 10), x * s[idx][:, None])


# ------------------------------------------------------------------ derivatives that are reductions
def gradient(out, x, w):
    return torch.autograd.grad(out, x, w, create_graph=True)[0]


@every_dtype
@every_data
@pytest.mark.parametrize("width", [1, 3])
def test_reductions_in_first_derivatives(dtype, data, width):
    """The gradients of what is read by every element of a segment: mul's y, matvec's m."""
    for n in (1, 9, 64, 65, 129, 1000, 4097):
        x, g = numbers(data, n * width, dtype).view(n, width), signs(n * width, dtype).view(n, width)
        idx, m = one_segment(n)
        s = torch.ones(1, dtype=dtype, requires_grad=True)
        assert_accurate(gradient(ops.segmented_mul(x, s, idx, m), s, g)[0], *products((x, g)))
        a = torch.ones(1, width, 2, dtype=dtype, requires_grad=True)
        w = torch.stack([g[:, 0], g[:, -1].flip(0)], 1)
        found = gradient(ops.segmented_matvec(x, a, idx, m), a, w)
        for k in range(width):
            for j in range(2):
                assert_accurate(found[0, k, j], *products((x[:, k], w[:, j])))


@every_dtype
@every_data
def test_reductions_in_second_derivatives(dtype, data):
    """What the gradients' cotangents are pooled into: again sums, means, dots."""
    for n in (1, 9, 65, 129, 1000, 4097):
        x, v = numbers(data, n, dtype), signs(n, dtype)
        idx, m = one_segment(n)
        leaf, w = v.clone().requires_grad_(), torch.ones(1, dtype=dtype, requires_grad=True)
        back = gradient(ops.segmented_sum(leaf, idx, m), leaf, w)
        assert_accurate(gradient(back, w, x)[0], *singles(x))
        back = gradient(ops.segmented_mean(leaf, idx, m), leaf, w)
        assert_accurate(gradient(back, w, x)[0], *singles(x), n)
        other = x.flip(0).clone().requires_grad_()
        both = torch.autograd.grad(ops.segmented_dot(leaf, other, idx, m), [leaf, other], w, create_graph=True)
        (found,) = torch.autograd.grad(both, w, [x, v])
        assert_accurate(found[0], *products((x, other.detach()), (v, leaf.detach())))


@every_dtype
def test_gradient_of_mean(dtype):
    """g / count, rounded once."""
    for n in (1, 3, 7, 70_000):
        idx, m = one_segment(n)
        x = torch.zeros(n, dtype=dtype, requires_grad=True)
        w = torch.tensor([0.7], dtype=dtype)
        (g,) = torch.autograd.grad(ops.segmented_mean(x, idx, m), x, w)
        exact = Fraction(w.item()) / n
        assert (g == g[0]).all()
        assert abs(Fraction(g[0].item()) - exact) <= Fraction(torch.finfo(dtype).eps) / 2 * exact


# ------------------------------------------------------------------ range
def test_float32_does_not_overflow_on_the_way():
    """The accumulator is float64: only the result has to fit."""
    big = 3.0e38
    idx = torch.zeros(4, dtype=torch.int32)
    x = torch.tensor([big, big, -big, -big / 2])
    assert ops.segmented_sum(x, idx, 1).item() == torch.tensor(big / 2).item()
    assert ops.segmented_mean(x.abs(), idx, 1).item() == pytest.approx(0.875 * big, rel=1e-6)
    assert ops.segmented_rms_norm(x, idx, 1).item() == pytest.approx(math.sqrt(3.25 / 4) * big, rel=1e-6)
    assert ops.segmented_max_norm(x, idx, 1).item() == torch.tensor(big).item()
    tiny = torch.tensor([1e-30, -1e-30, 3e-30, 1e-30])
    assert ops.segmented_rms_norm(tiny, idx, 1).item() == pytest.approx(math.sqrt(3) * 1e-30, rel=1e-6)
    assert ops.segmented_max_norm(tiny, idx, 1).item() == pytest.approx(3e-30, rel=1e-6)
    assert ops.segmented_dot(x, tiny, idx, 1).item() == pytest.approx(-3.5 * big * 1e-30, rel=1e-5)


@every_dtype
def test_infinite_sums(dtype):
    largest = torch.finfo(dtype).max
    idx = torch.tensor([0, 0, 1, 1, 2, 2, 3], dtype=torch.int32)
    inf = float("inf")
    x = torch.tensor([largest, largest, inf, 1.0, inf, -inf, 1.0], dtype=dtype)
    out = ops.segmented_sum(x, idx, 4)
    assert out[0] == inf and out[1] == inf and out[2].isnan() and out[3] == 1


# ------------------------------------------------------------------ random search, and these tests can fail
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=80),
    repeat=st.integers(1, 70),
)
def test_sum_of_anything(dtype, values, repeat):
    x = torch.tensor(values * repeat, dtype=dtype)
    if dtype == torch.float64:
        x = x / 3
    idx, m = one_segment(len(x))
    assert_accurate(ops.segmented_sum(x, idx, m)[0], *singles(x))


@every_dtype
def test_plain_sums_fail(dtype):
    """The data are what they claim to be: index_add breaks the bound on some of them."""
    failed = 0
    for data in DATA.values():
        for n in (1000, 4097, 20_000):
            x = numbers(data, n, dtype)
            idx, m = one_segment(n)
            try:
                assert_accurate(x.new_zeros(m).index_add(0, idx, x)[0], *singles(x))
            except AssertionError:
                failed += 1
    assert failed >= 5


def test_exact_products():
    g = np.random.default_rng(0)
    a, b = (g.standard_normal(50) * np.exp2(g.integers(-40, 40, 50)) for _ in range(2))
    high, low = split_products(a, b)
    for p, q, x, y in zip(high.tolist(), low.tolist(), a.tolist(), b.tolist(), strict=True):
        assert Fraction(p) + Fraction(q) == Fraction(x) * Fraction(y)
    terms = a.tolist()
    exact = sum(map(Fraction, terms))
    assert excess(1.5, terms, 7) == pytest.approx(float(abs(Fraction(1.5) * 7 - exact)), rel=1e-15)


def test_every_reduction_is_here():
    """A new op that reduces belongs into this file."""
    known = {"sum", "mean", "dot", "rms_norm", "max_norm"}
    assert {o.short for o in OPS if o.reduces and not o.selects} == known
