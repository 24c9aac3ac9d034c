# SPDX-License-Identifier: Apache-2.0
"""Every launcher against NumPy: values, poisoned outputs, N = 0, strided arrays, idx out of range."""

import numpy as np
import pytest
from launchers import (
    INTERFACE,
    LENGTHS,
    ORACLES,
    Segments,
    arguments,
    call,
    close,
    inputs_of,
    make_inputs,
    route,
    sorted_idx,
    widths,
)

FULL = [np.float32, np.float64]
HALF = [name for name in INTERFACE if any(kind in ("H", "W") for _, kind, _ in arguments(name))]
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


@pytest.mark.parametrize("name", HALF)
def test_half_types(name):
    idx = sorted_idx(50, 7)
    for width in widths(name):
        values = make_inputs(name, idx, 7, width, np.float16)
        got = call(name, values, idx, 7, width, np.float16)
        ((argument, expected),) = ORACLES[name](Segments(idx, 7), *(values[a] for a in inputs_of(name))).items()
        np.testing.assert_array_equal(got[argument], expected.astype(np.float16).reshape(got[argument].shape))


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
    for name in HALF:
        for way in ("engine", "kernels"):
            with route(way):
                for width in widths(name):
                    compare(name, make_inputs(name, idx, 7, width, np.float32), idx, 7, width, np.float32)


@pytest.mark.parametrize("scalar", [np.float16, *FULL])
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
        if scalar is np.float16:
            continue
        g = {"g_out": rng.uniform(-1, 1, (30, 3)).astype(scalar).astype(np.float64)}
        widths_of = {"grad_x": kx, "grad_y": ky}
        got = call("segmented_add_backward", g, idx, 4, 3, scalar, out_widths=widths_of)
        gx = g["g_out"] if kx == 3 else g["g_out"].sum(1, keepdims=True)
        gy = segments.sum(g["g_out"] if ky == 3 else g["g_out"].sum(1, keepdims=True))
        close(got["grad_x"], gx, scalar)
        close(got["grad_y"], gy, scalar)
        gg = {"gg_x": values["x"], "gg_y": values["y"]}
        got = call("segmented_add_double_backward", gg, idx, 4, 3, scalar)["grad_g_out"]
        close(got, expected, scalar)


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
