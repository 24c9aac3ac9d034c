# SPDX-License-Identifier: Apache-2.0
"""Names and order of arguments are the published interface; bad arguments are named before anything is launched."""

import inspect
import math

import numpy as np
import pytest
import warp as wp
from launchers import (
    BFLOAT16,
    DTYPES,
    INTERFACE,
    REDUCING,
    arguments,
    call,
    launcher,
    make_inputs,
    sorted_idx,
    to_warp,
    width_of,
    widths,
)

from segmentops import warp as segment_ops
from segmentops import warp_backward as segment_ops_backward
from segmentops.kernels import launch
from segmentops.kernels.signatures import SIGNATURES


def test_interface():
    assert set(SIGNATURES) == set(INTERFACE)
    assert set(segment_ops.__all__) | set(segment_ops_backward.__all__) == {*INTERFACE, "compute_ept"}
    for name in INTERFACE:
        expected = [argument for argument, _, _ in arguments(name)]
        assert list(inspect.signature(launcher(name)).parameters) == expected
        assert [argument.name for argument in SIGNATURES[name]] == expected
        assert launcher(name).__doc__ and "Parameters" in launcher(name).__doc__
        assert ("sorted" in launcher(name).__doc__) == (name in REDUCING)


def good(name, n=6, m=3, scalar=np.float32):
    """Arguments by name that the launcher takes."""
    width = widths(name)[-1]
    found = {}
    for argument, kind, dimension in arguments(name):
        length = n if dimension == "n" else m
        if argument == "M":
            found["M"] = m
        elif argument == "idx":
            found["idx"] = wp.array(sorted_idx(n, m), dtype=wp.int32, device="cpu")
        else:
            shape = (length,) if kind in "SRKi" else (length, width_of(kind, width))
            found[argument] = to_warp(np.ones(shape), kind, scalar)
    return found


ALL = [(name, argument) for name in INTERFACE for argument, _, _ in arguments(name)]


@pytest.fixture(autouse=True)
def nothing_runs(request, monkeypatch):
    """A rejected call must not have launched anything."""
    if "rejects" in request.node.name:

        def refuse(*_, **__):
            raise AssertionError("launched before the arguments were checked")

        monkeypatch.setattr(launch, "_launch", refuse)
        monkeypatch.setattr("segmentops.kernels.dispatch._native", refuse)


def rejected(error, name, values, *words):
    with pytest.raises(error) as caught:
        launcher(name)(**values)
    for word in (name, *words):
        assert word in str(caught.value), str(caught.value)


def test_good_arguments_by_keyword():
    for name in INTERFACE:
        launcher(name)(**good(name))


@pytest.mark.parametrize("name, argument", ALL)
def test_rejects_what_is_no_array(name, argument):
    values = good(name)
    rejected(TypeError, name, {**values, argument: None if argument == "M" else [1.0]}, argument)
    rejected(TypeError, name, {**values, argument: True if argument == "M" else np.ones(3)}, argument)


@pytest.mark.parametrize("name, argument", ALL)
def test_rejects_dtype(name, argument):
    values = good(name)
    if argument == "M":
        return rejected(TypeError, name, {**values, "M": 3.0}, "M")
    array = values[argument]
    wrong = wp.zeros(len(array), dtype=wp.int64 if array.dtype is wp.int32 else wp.int32, device="cpu")
    rejected(ValueError, name, {**values, argument: wrong}, argument, "int32" if argument == "idx" else "got int")
    return None


@pytest.mark.parametrize("name", INTERFACE)
def test_rejects_mixed_precision(name):
    values = good(name)
    floating = [a for a, v in values.items() if a != "M" and v.dtype is not wp.int32]
    if len(floating) > 1:
        other = good(name, scalar=np.float64)[floating[-1]]
        rejected(ValueError, name, {**values, floating[-1]: other}, floating[-1])


@pytest.mark.parametrize("name, argument", ALL)
def test_rejects_length(name, argument):
    values = good(name)
    dimensions = {a: d for a, _, d in arguments(name)}
    alike = [a for a, d in dimensions.items() if d == dimensions[argument]]
    if len(alike) == 1:
        return
    if argument == "M":
        return rejected(ValueError, name, {**values, "M": 4}, "M")
    array = values[argument]
    longer = wp.zeros(len(array) + 1, dtype=array.dtype, device="cpu")
    first = argument if alike[0] != argument else alike[1]
    return rejected(ValueError, name, {**values, argument: longer}, first, str(len(array)), str(len(array) + 1))


@pytest.mark.parametrize("name, argument", ALL)
def test_rejects_rank(name, argument):
    values = good(name)
    if argument != "M":
        wrong = wp.zeros((len(values[argument]), 1), dtype=values[argument].dtype, device="cpu")
        rejected(ValueError, name, {**values, argument: wrong}, argument, "1-D")


def test_rejects_negative_M():
    rejected(
        ValueError, "segmented_sum_double_backward", {**good("segmented_sum_double_backward"), "M": -1}, "negative"
    )


@pytest.mark.parametrize("scalar", [np.float16, BFLOAT16])
def test_rejects_by_products_in_half_precision(scalar):
    """1 / (out counts) is often no number of theirs."""
    values = good("segmented_rms_norm_backward", scalar=scalar)
    half = wp.zeros(3, dtype=DTYPES[scalar, 1], device="cpu")
    rejected(ValueError, "segmented_rms_norm_backward", {**values, "inv_norm": half}, "inv_norm", "float32")


def test_rejects_vectors_of_bfloat16_by_a_name_that_can_be_typed():
    values = good("segmented_sum", scalar=BFLOAT16)
    name = "wp.types.vector(3, wp.bfloat16)"
    rejected(ValueError, "segmented_sum", {**values, "out": good("segmented_sum")["out"]}, "out", name)
    rejected(ValueError, "segmented_sum", {**good("segmented_sum"), "out": values["out"]}, "out", name)


def test_rejects_results_of_wrong_width():
    values = good("segmented_add")
    rejected(ValueError, "segmented_add", {**values, "out": wp.zeros(6, dtype=wp.float32, device="cpu")}, "out")
    scalars = {
        a: wp.zeros(len(v), dtype=wp.float32, device="cpu") for a, v in values.items() if a not in ("idx", "out")
    }
    rejected(ValueError, "segmented_add", {**values, **scalars}, "out")


def test_rejects_another_device(monkeypatch):
    """There is no second device here: an array that says it lives on one."""

    class Elsewhere:
        def __str__(self):
            return "cuda:7"

    values = good("segmented_sum")
    monkeypatch.setattr(values["out"], "device", Elsewhere())
    rejected(ValueError, "segmented_sum", values, "out", "cuda:7")


def test_M_takes_anything_with_index():
    values = good("segmented_sum_double_backward")
    launcher("segmented_sum_double_backward")(**{**values, "M": np.int64(3)})


def test_inputs_are_not_modified():
    idx = sorted_idx(20, 4)
    for name in INTERFACE:
        values = make_inputs(name, idx, 4, widths(name)[-1], np.float64)
        got = call(name, values, idx, 4, widths(name)[-1], np.float64)
        changed = {"segmented_axpy": "y", "segmented_max": "out", "segmented_min": "out"}.get(name)
        for argument, value in values.items():
            if argument != changed:
                np.testing.assert_array_equal(got[argument].ravel(), np.ravel(value))
        if "idx" in got:
            np.testing.assert_array_equal(got["idx"], idx)


@pytest.mark.parametrize("is_vec3", [False, True])
def test_compute_ept(is_vec3):
    low, high = (2, 8) if is_vec3 else (4, 16)
    for per_thread in range(40):
        powers = [1 << k for k in range(7)]
        nearest = max(powers, key=lambda p: (-abs(p - per_thread), p))
        for extra in (0, 511):
            got = segment_ops.compute_ept(per_thread * 512 * 7 + extra, 7, is_vec3)
            assert got == min(max(nearest, low), high)
            assert isinstance(got, int) and math.log2(got).is_integer()
    for bad in ((-1, 1), (1, 0), (1, -2)):
        with pytest.raises(ValueError, match="compute_ept"):
            segment_ops.compute_ept(*bad, is_vec3)


def test_dtypes_are_what_the_tests_think():
    assert {dtype for (_, k), dtype in DTYPES.items() if k == 1} == {
        wp.float16, wp.bfloat16, wp.float32, wp.float64,
    }  # fmt: skip
