# SPDX-License-Identifier: Apache-2.0
"""Every launcher against NumPy: values, poisoned outputs, N = 0, strided arrays, idx out of range."""

import numpy as np
import pytest
from launchers import (
    BFLOAT16,
    HALVES,
    INTERFACE,
    LENGTHS,
    ORACLES,
    POISON,
    REDUCING,
    Segments,
    arguments,
    call,
    close,
    inputs_of,
    kept,
    make_inputs,
    rounded_once,
    route,
    sorted_idx,
    widths,
)

from segmentops.kernels import dispatch

FULL = [np.float32, np.float64]
ELEMENTWISE = [name for name in INTERFACE if name not in REDUCING and name.startswith("segmented")]
CASES = [(name, width) for name in INTERFACE for width in widths(name)]


def compare(name, values, idx, m, width, scalar, **options):
    """Run, compare with the oracle, and look that inputs are as before."""
    got = call(name, values, idx, m, width, scalar, **options)
    segments = Segments(idx, m)
    expected = ORACLES[name](segments, *(values[a] for a in inputs_of(name)))
    for argument, value in expected.items():
        close(got[argument], value, scalar, scale=max(1.0, segments.count.max(initial=0) / 10))
    for argument in values:
        if argument not in expected:
            np.testing.assert_array_equal(got[argument].astype(np.float64).ravel(), np.ravel(values[argument]))
    return got


@pytest.mark.parametrize("way", ["engine", "kernels"])
@pytest.mark.parametrize("scalar", FULL)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_values(way, scalar, lengths):
    n, m = LENGTHS[lengths]
    idx = sorted_idx(n, m)
    with route(way):
        for name, width in CASES:
            compare(name, make_inputs(name, idx, m, width, scalar), idx, m, width, scalar)


@pytest.mark.parametrize("way", ["engine", "kernels"])
@pytest.mark.parametrize("scalar", HALVES)
def test_half_types(way, scalar):
    """Every launcher takes them, accumulates wide and rounds once; what is kept for a backward is float32."""
    idx, m = np.concatenate([[-1], sorted_idx(50, 7), [7]]).astype(np.int32), 7
    with route(way):
        for name, width in CASES:
            values = make_inputs(name, idx, m, width, scalar)
            got = call(name, values, idx, m, width, scalar)
            kinds = {argument: kind for argument, kind, _ in arguments(name)}
            for argument, exact in ORACLES[name](Segments(idx, m), *(values[a] for a in inputs_of(name))).items():
                rounded_once(got[argument], exact, kept(scalar) if kinds[argument] == "K" else scalar)


@pytest.mark.parametrize("scalar", HALVES)
def test_half_types_round_what_is_too_large_or_small(scalar):
    """The mean and the norm come from the accumulator, where the sums themselves overflow; inv_norm is in range."""
    n, value = 100_000, 3.0
    idx, x = np.zeros(n, np.int32), np.full((n, 3), value)
    for way in ("engine", "kernels"):
        with route(way):
            assert (call("segmented_mean", {"x": x}, idx, 1, 3, scalar)["out"] == value).all()
            got = call("segmented_rms_norm_forward_precompute", {"x": x}, idx, 1, 3, scalar)
        rounded_once(got["out"], [value * 3**0.5], scalar)
        rounded_once(got["inv_norm"], [1 / (value * 3**0.5 * n)], np.float32)


@pytest.mark.parametrize("width", [1, 3])
def test_the_mean_of_equal_numbers_is_that_number(width):
    lengths = [*range(1, 301), 20_000]
    idx = np.repeat(np.arange(301, dtype=np.int32), lengths)
    for value in (0.1, 1 / 3, 1e300, 5e-324):
        x = np.full((len(idx), width), value)
        for way in ("engine", "kernels"):
            with route(way):
                assert (call("segmented_mean", {"x": x}, idx, 301, width, np.float64)["out"] == value).all(), way
    half_way = np.repeat([1 + 2.0**-52, 1 + 2.0**-51], 49)
    x = np.repeat(half_way[:, None], width, 1)
    for way in ("engine", "kernels"):
        with route(way):
            out = call("segmented_mean", {"x": x}, np.zeros(98, np.int32), 1, width, np.float64)["out"]
        assert (out == half_way[-1]).all(), way


@pytest.mark.parametrize("way", ["engine", "kernels"])
@pytest.mark.parametrize("scalar", FULL)
def test_no_elements(way, scalar):
    idx = sorted_idx(0, 5)
    with route(way):
        for name, width in CASES:
            if name in ("segmented_max", "segmented_min"):
                continue  # they leave empty segments as they were
            compare(name, make_inputs(name, idx, 5, width, scalar), idx, 5, width, scalar)
            compare(name, make_inputs(name, idx, 0, width, scalar), idx, 0, width, scalar)


@pytest.mark.parametrize("scalar", FULL)
def test_strided(scalar):
    n, m = LENGTHS["few"]
    idx = sorted_idx(n, m)
    for name, width in CASES:
        compare(name, make_inputs(name, idx, m, width, scalar), idx, m, width, scalar, strided=True)
        zero = sorted_idx(0, m)
        compare(name, make_inputs(name, zero, m, width, scalar), zero, m, width, scalar, strided=True)


@pytest.mark.parametrize("way", ["engine", "kernels"])
@pytest.mark.parametrize("scalar", FULL)
def test_idx_out_of_range(way, scalar):
    """Padding on both sides, with NaN in its data: ignored by reductions, 0 in element-wise outputs."""
    m = 6
    big = np.iinfo(np.int32)
    idx = np.array([big.min, -7, -1, *sorted_idx(30, m), m, m, m + 3, big.max], dtype=np.int32)
    outside = (idx < 0) | (idx >= m)
    with route(way):
        for name, width in CASES:
            values = make_inputs(name, idx, m, width, scalar)
            for argument, _, dimension in arguments(name):
                if dimension == "n" and argument in values and not name.startswith("segmented_axpy"):
                    values[argument][outside] = np.nan
            compare(name, values, idx, m, width, scalar)


def test_axpy_keeps_what_is_outside():
    idx = np.array([-1, 0, 1, 5], dtype=np.int32)
    values = make_inputs("segmented_axpy", idx, 2, 1, np.float32)
    values["x"][[0, 3]] = np.nan
    got = call("segmented_axpy", values, idx, 2, 1, np.float32)["y"]
    np.testing.assert_array_equal(got[[0, 3]], values["y"][[0, 3], 0].astype(np.float32))


def test_elementwise_takes_any_order():
    rng = np.random.default_rng(3)
    idx = rng.integers(-1, 8, 60).astype(np.int32)
    for name in ELEMENTWISE:
        for way in ("engine", "kernels"):
            with route(way):
                for width in widths(name):
                    compare(name, make_inputs(name, idx, 7, width, np.float32), idx, 7, width, np.float32)


# idx, and what of it is in the message
UNSORTED = {
    "descending": ([2, 0, 1, 0, 2, 1, 0], "idx[1] = 0 comes after idx[0] = 2"),
    "at the end": ([0, 0, 1, 1, 2, 2, 1], "idx[6] = 1 comes after idx[5] = 2"),
    "padded": ([-1, 2, 5, 0, 1, -1, -1], "idx[3] = 0 comes after idx[1] = 2"),
    "padding inside a segment": ([0, 1, -1, 1, 2, 2, 2], "idx[3] = 1 comes after idx[2] = -1"),
    "padding between segments": ([0, 1, 9, 2, 2, 2, 2], "idx[3] = 2 comes after idx[2] = 9"),
}


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("case", UNSORTED)
@pytest.mark.parametrize("name", REDUCING)
def test_reductions_refuse_an_unsorted_idx(name, case, strided):
    """Before anything is written, by the engine's look or NumPy's."""
    idx, words = np.array(UNSORTED[case][0], np.int32), UNSORTED[case][1]
    width, arrays = widths(name)[-1], {}
    with pytest.raises(ValueError) as caught:
        call(name, make_inputs(name, idx, 3, width, np.float32), idx, 3, width, np.float32, strided, None, arrays)
    assert f"{name}: idx must be sorted, but {words}" in str(caught.value)
    assert all((arrays[a].numpy() == POISON).all() for a in arrays if a not in (*inputs_of(name), "idx"))
    np.testing.assert_array_equal(arrays["idx"].numpy(), idx)


def test_many_elements_out_of_order():
    """Found by several threads, wherever it is."""
    for at in (1, 40_000, 99_999):
        idx = np.arange(100_000, dtype=np.int32)
        idx[at] -= 1
        call("segmented_count", {}, idx, 100_000, 1, np.float32)
        idx[at] -= 1
        if at > 1:
            with pytest.raises(ValueError, match=f"idx.{at}. = {at - 2} comes after"):
                call("segmented_count", {}, idx, 100_000, 1, np.float32)


@pytest.mark.parametrize("way", ["engine", "kernels", "no engine"])
@pytest.mark.parametrize("strided", [False, True])
def test_padding_at_the_ends_in_any_order(way, strided, monkeypatch):
    """Not only negative before and too large after."""
    if way == "no engine":
        monkeypatch.setattr(dispatch, "_function", lambda *_: None)
    for before, after in (([], [-1] * 70), ([9, -2, 9], []), ([7] * 70, [7] * 70), ([-1, 7], [-5, 9, -1])):
        idx = np.array([*before, *sorted_idx(30, 7), *after], np.int32)
        with route("kernels" if way == "no engine" else way):
            for name in REDUCING if way != "no engine" else ["segmented_sum"]:
                width = widths(name)[-1]
                compare(name, make_inputs(name, idx, 7, width, np.float32), idx, 7, width, np.float32, strided=strided)


def test_order_without_the_engine(monkeypatch):
    monkeypatch.setattr(dispatch, "_function", lambda *_: None)
    test_reductions_refuse_an_unsorted_idx("segmented_sum", "descending", True)
    idx = sorted_idx(30, 7)
    compare("segmented_sum", make_inputs("segmented_sum", idx, 7, 1, np.float32), idx, 7, 1, np.float32)


@pytest.mark.parametrize("scalar", [*HALVES, *FULL])
def test_add_of_mixed_types(scalar):
    idx = sorted_idx(30, 4)
    rng = np.random.default_rng(1)
    segments = Segments(idx, 4)
    for kx, ky in ((3, 1), (1, 3)):
        values = {
            "x": rng.uniform(-1, 1, (30, kx)).astype(scalar).astype(np.float64),
            "y": rng.uniform(-1, 1, (4, ky)).astype(scalar).astype(np.float64),
        }
        got = call("segmented_add", values, idx, 4, 3, scalar)["out"]
        expected = values["x"] + segments.broadcast(values["y"])
        np.testing.assert_array_equal(got, expected.astype(scalar))
        g = {"g_out": rng.uniform(-1, 1, (30, 3)).astype(scalar).astype(np.float64)}
        widths_of = {"grad_x": kx, "grad_y": ky}
        got = call("segmented_add_backward", g, idx, 4, 3, scalar, out_widths=widths_of)
        gx = g["g_out"] if kx == 3 else g["g_out"].sum(1, keepdims=True)
        gy = segments.sum(g["g_out"] if ky == 3 else g["g_out"].sum(1, keepdims=True))
        (close if scalar in FULL else rounded_once)(got["grad_x"], gx, scalar)
        (close if scalar in FULL else rounded_once)(got["grad_y"], gy, scalar)
        gg = {"gg_x": values["x"], "gg_y": values["y"]}
        got = call("segmented_add_double_backward", gg, idx, 4, 3, scalar)["grad_g_out"]
        (close if scalar in FULL else rounded_once)(got, expected, scalar)


@pytest.mark.parametrize("way", ["engine", "kernels"])
def test_norms_of_zeros_and_nans(way):
    """All-zero segments: 0 in every order. The first NaN wins a maximum, ties go to the first."""
    idx = np.array([0, 0, 1, 1, 1, 3, 3, 3], dtype=np.int32)
    x = np.zeros((8, 3))
    x[2], x[3], x[4] = [3, 4, 0], [0, 0, 5], [1, 0, 0]
    x[5], x[6, 0], x[7, 1] = [9, 9, 9], np.nan, np.nan
    with route(way):
        got = call("segmented_max_norm_forward_precompute", {"x": x}, idx, 4, 3, np.float64)
        np.testing.assert_array_equal(got["argmax_idx"], [0, 2, -1, 6])
        np.testing.assert_array_equal(got["out"], [0, 5, 0, np.nan])
        values = {"x": x, "g_out": np.ones(4), "argmax_idx": got["argmax_idx"], "gg_gx": np.ones((8, 3))}
        first = call("segmented_max_norm_backward", values, idx, 4, 3, np.float64)["grad_x"]
        second = call("segmented_max_norm_double_backward", values, idx, 4, 3, np.float64)
        assert not first[:2].any() and not second["grad_x_extra"][:2].any()
        np.testing.assert_array_equal(second["grad_g_out"][[0, 2]], 0)
        rms = call("segmented_rms_norm_forward_precompute", {"x": x}, idx, 4, 3, np.float64)
        np.testing.assert_array_equal(np.isnan(rms["inv_norm"]), [False, False, False, True])
        assert rms["inv_norm"][0] == 0 and rms["inv_norm"][2] == 0


@pytest.mark.parametrize("scale", [1e-15, 1e15])
@pytest.mark.parametrize("way", ["engine", "kernels"])
def test_rms_norm_stays_in_range(way, scale):
    """float32 second order neither overflows nor underflows."""
    idx = sorted_idx(40, 5)
    rng = np.random.default_rng(2)
    x = (rng.uniform(-1, 1, (40, 3)) * scale).astype(np.float32).astype(np.float64)
    with route(way):
        forward = call("segmented_rms_norm_forward_precompute", {"x": x}, idx, 5, 3, np.float32)
        values = {
            "x": x,
            "gg_x": rng.uniform(-1, 1, (40, 3)).astype(np.float32).astype(np.float64),
            "g_out": np.ones(5),
            "inv_norm": forward["inv_norm"].astype(np.float64),
            "counts": forward["counts"],
        }
        compare("segmented_rms_norm_forward_precompute", {"x": x}, idx, 5, 3, np.float32)
        got = call("segmented_rms_norm_double_backward", values, idx, 5, 3, np.float32)
        expected = ORACLES["segmented_rms_norm_double_backward"](
            Segments(idx, 5), *(values[a] for a in inputs_of("segmented_rms_norm_double_backward"))
        )
        for argument, value in expected.items():
            np.testing.assert_allclose(got[argument], value, rtol=1e-5, atol=1e-5 * np.abs(value).max())


@pytest.mark.parametrize("exponent", [-148, -140, -127, -100, 0, 100, 125])
@pytest.mark.parametrize("scalar", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("way", ["engine", "kernels"])
def test_gradients_of_the_rms_norm_of_every_magnitude(way, scalar, exponent):
    """Also where float32 has no number 1 / (out counts), or one with few digits. Order k scales by c^(1 - k)."""
    if scalar is not np.float32:
        exponent = max(exponent, -133)
    n = 3000
    idx = np.concatenate([[0, 0], np.ones(n), [3]]).astype(np.int32)
    rng = np.random.default_rng(2)
    unit = np.concatenate([[[1, 0, 0], [0, 0, 0]], rng.integers(-2, 3, (n + 1, 3))]).astype(np.float64)
    cotangents = {"gg_x": rng.integers(-3, 4, (n + 3, 3)).astype(np.float64), "g_out": np.array([1.0, -2, 1, 1])}

    def gradients(x, scalar):
        forward = call("segmented_rms_norm_forward_precompute", {"x": x}, idx, 4, 3, scalar)
        assert np.isfinite(forward["inv_norm"]).all()
        inv = forward["inv_norm"].astype(np.float64)
        values = {"x": x, **cotangents, "inv_norm": inv, "counts": forward["counts"]}
        first = call("segmented_rms_norm_backward", values, idx, 4, 3, scalar)["grad_x"]
        second = call("segmented_rms_norm_double_backward", values, idx, 4, 3, scalar)
        found = (first, second["grad_g_out_extra"], second["grad_x_extra"])
        return [np.asarray(a).astype(np.float64) for a in found]

    with route(way):
        pairs = zip(gradients(unit, np.float64), gradients(unit * 2.0**exponent, scalar), strict=True)
    for which, (at_one, found) in enumerate(pairs):
        expected = at_one / (2.0**exponent if which == 2 else 1)
        eps = 2.0**-23 if scalar is np.float32 else 2.0**-7
        assert not np.isnan(found).any()
        there = np.abs(expected) <= 2.0**127
        bound = 2 * eps * np.abs(expected).max() + eps * 2.0**-126
        assert (np.abs(found - expected)[there] <= bound).all()


@pytest.mark.parametrize("way", ["engine", "kernels"])
def test_extremes(way):
    idx = np.array([0, 0, 1, 1, 2, 9], dtype=np.int32)
    x = np.array([1.0, np.nan, -np.inf, -5.0, -np.inf, 99.0])
    with route(way):
        up = call("segmented_max", {"x": x, "out": np.array([0.0, -np.inf, -np.inf, 4.0])}, idx, 4, 1, np.float32)[
            "out"
        ]
        down = call("segmented_min", {"x": x, "out": np.array([0.0, np.inf, np.inf, 4.0])}, idx, 4, 1, np.float32)[
            "out"
        ]
    np.testing.assert_array_equal(up, [np.nan, -5, -np.inf, 4])
    np.testing.assert_array_equal(down, [np.nan, -np.inf, -np.inf, 4])
