# SPDX-License-Identifier: Apache-2.0
"""Every launcher can be captured and replayed with changed inputs; what it may not do in a capture fails here."""

import traceback

import numpy as np
import pytest
import warp as wp
from launchers import (
    INTERFACE,
    POISON,
    arguments,
    from_warp,
    launcher,
    make_inputs,
    sorted_idx,
    to_warp,
    width_of,
    widths,
)

from segmentops.warp import segmented_dot, segmented_mul, segmented_rms_norm, segmented_sum
from segmentops.warp_backward import (
    segmented_dot_backward,
    segmented_mul_backward,
    segmented_mul_double_backward,
    segmented_rms_norm_backward,
    segmented_rms_norm_double_backward,
    segmented_rms_norm_forward_precompute,
)

N, M = 9000, 40


def allocate(name, idx, m, width, scalar):
    """Arrays by argument, M included: inputs random, outputs poisoned."""
    values = make_inputs(name, idx, m, width, scalar)
    found = {}
    for argument, kind, dimension in arguments(name):
        if argument == "M":
            found["M"] = m
        elif argument == "idx":
            found["idx"] = to_warp(idx, "i", scalar)
        else:
            length = len(idx) if dimension == "n" else m
            shape = (length,) if kind in "SRKi" else (length, width_of(kind, width))
            found[argument] = to_warp(values.get(argument, np.full(shape, POISON)), kind, scalar)
    return found, values


def assign(array, values):
    """New contents at the same address."""
    data = np.asarray(values).astype(array.numpy().dtype)
    array.assign(data.reshape(array.numpy().shape))


@pytest.mark.parametrize("scalar", [np.float32, np.float64])
def test_capture_of_every_launcher(scalar):
    """Replayed on other data, idx included, a capture writes what a plain call on these data writes."""
    first, second = sorted_idx(N, M, seed=1), sorted_idx(N, M // 2, seed=2)
    for name in INTERFACE:
        width = widths(name)[-1]
        plain, values = allocate(name, second, M, width, scalar)
        arrays, _ = allocate(name, first, M, width, scalar)
        launcher(name)(**arrays)  # compiles
        with wp.ScopedCapture(device="cpu") as capture:
            launcher(name)(**arrays)
        for argument, value in values.items():
            assign(arrays[argument], value)
        if "idx" in arrays:
            assign(arrays["idx"], second)
        for argument, array in arrays.items():
            if argument not in values and argument not in ("M", "idx"):
                array.fill_(int(POISON)) if array.dtype is wp.int32 else assign(
                    array, np.full(array.numpy().shape, POISON)
                )
        wp.capture_launch(capture.graph)
        launcher(name)(**plain)
        for argument, array in arrays.items():
            if argument != "M":
                np.testing.assert_array_equal(
                    from_warp(array), from_warp(plain[argument]), err_msg=f"{name} {argument}"
                )


def test_an_unsorted_idx_is_not_seen_in_a_capture():
    """Nothing can be raised when the launches run: values are unspecified then, and later calls are as ever."""
    idx, other = to_warp([1, 0], "i", np.float32), to_warp([0, 1], "i", np.float32)
    x, out = to_warp([1.0, 2.0], "S", np.float32), to_warp([0.0, 0.0], "S", np.float32)
    segmented_sum(x, other, out)
    with wp.ScopedCapture(device="cpu") as capture:
        segmented_sum(x, idx, out)
    wp.capture_launch(capture.graph)
    idx.assign(np.array([0, 1], np.int32))
    wp.capture_launch(capture.graph)
    np.testing.assert_array_equal(out.numpy(), [1, 2])


def chain(a):
    """Forward, backward and double backward of rms_norm(mul(x, y)) + dot(x, z), on the arrays of a dict."""
    segmented_mul(a["x"], a["y"], a["idx"], a["xy"])
    segmented_rms_norm_forward_precompute(a["xy"], a["idx"], a["sum_sq"], a["counts"], a["norm"], a["inv"])
    segmented_rms_norm(a["xy"], a["idx"], a["sum_sq"], a["counts"], a["norm"])
    segmented_dot(a["x"], a["z"], a["idx"], a["dot"])
    segmented_rms_norm_backward(a["g"], a["xy"], a["inv"], a["idx"], a["g_xy"])
    segmented_mul_backward(a["g_xy"], a["x"], a["y"], a["idx"], M, a["g_x"], a["g_y"])
    segmented_dot_backward(a["g"], a["x"], a["z"], a["idx"], a["g_x2"], a["g_z"])
    segmented_mul_double_backward(
        a["g_x2"], a["dot"], a["g_xy"], a["x"], a["y"], a["idx"], a["gg_xy"], a["x_extra"], a["y_extra"]
    )
    segmented_rms_norm_double_backward(
        a["gg_xy"], a["xy"], a["g"], a["inv"], a["counts"], a["idx"], M, a["xy_extra"], a["g_extra"]
    )


def chain_arrays(seed):
    rng = np.random.default_rng(seed)
    arrays = {
        "idx": to_warp(sorted_idx(N, M, seed), "i", np.float32),
        "counts": wp.empty(M, dtype=wp.int32, device="cpu"),
    }
    for name in ("x", "z", "xy", "g_xy", "g_x", "g_x2", "g_z", "gg_xy", "x_extra", "xy_extra"):
        arrays[name] = to_warp(rng.standard_normal((N, 3)), "V", np.float32)
    for name in ("y", "g", "sum_sq", "norm", "inv", "dot", "g_y", "y_extra", "g_extra"):
        arrays[name] = to_warp(rng.standard_normal(M), "S", np.float32)
    return arrays


def test_capture_of_a_chain():
    arrays = chain_arrays(0)
    chain(arrays)
    with wp.ScopedCapture(device="cpu") as capture:
        chain(arrays)
    for seed in (1, 2):
        plain = chain_arrays(seed)
        for name in ("x", "y", "z", "g", "idx"):
            assign(arrays[name], plain[name].numpy())
        wp.capture_launch(capture.graph)
        chain(plain)
        for name in arrays:
            np.testing.assert_array_equal(arrays[name].numpy(), plain[name].numpy(), err_msg=name)


class Watch:
    """Fails on synchronisation, reads on the host, and allocations that do not come from wp.empty or wp.zeros."""

    def __init__(self, monkeypatch):
        self.allocations = 0
        for name in ("synchronize", "synchronize_device", "synchronize_stream", "synchronize_event"):
            monkeypatch.setattr(wp, name, self.refuse(name))
            monkeypatch.setattr(wp._src.context, name, self.refuse(name))
        for name in ("numpy", "list", "__array__"):
            if hasattr(wp.array, name):
                monkeypatch.setattr(wp.array, name, self.refuse(name))
        device = wp.get_device("cpu")
        allocator = device.get_allocator()
        allocate = allocator.allocate

        def watched(*arguments, **options):
            frames = [frame.name for frame in traceback.extract_stack()]
            assert "empty" in frames or "zeros" in frames, f"an allocation by {frames[-6:]}"
            self.allocations += 1
            return allocate(*arguments, **options)

        monkeypatch.setattr(allocator, "allocate", watched)

    @staticmethod
    def refuse(name):
        def refused(*_, **__):
            raise AssertionError(f"{name} in a launcher")

        return refused


def test_capture_allocates_by_empty_and_never_synchronises(monkeypatch):
    idx = sorted_idx(N, M)
    prepared = []
    for name in INTERFACE:
        arrays, _ = allocate(name, idx, M, widths(name)[-1], np.float32)
        launcher(name)(**arrays)
        prepared.append((name, arrays))
        with wp.ScopedCapture(device="cpu"):  # compiles what captures take
            launcher(name)(**arrays)
    watch = Watch(monkeypatch)
    for name, arrays in prepared:
        launcher(name)(**arrays)
        with wp.ScopedCapture(device="cpu"):
            launcher(name)(**arrays)
    assert watch.allocations > 0  # scratch of long segments, seen by the watch


def test_capture_watch_sees_what_it_should(monkeypatch):
    x = wp.zeros(4, dtype=wp.float32, device="cpu")
    Watch(monkeypatch)
    wp.empty(4, dtype=wp.float32, device="cpu")
    wp.zeros(4, dtype=wp.float32, device="cpu")
    for bad in (
        lambda: wp.array(np.ones(4), dtype=wp.float32, device="cpu", copy=True),
        lambda: wp.synchronize(),
        lambda: x.numpy(),
    ):
        with pytest.raises(AssertionError):
            bad()
