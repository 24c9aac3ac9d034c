# SPDX-License-Identifier: Apache-2.0
"""Every launcher on CUDA arrays, on a GPU: values against NumPy, capture and replay. Needs no CPU compiler."""

import numpy as np
import pytest
import warp as wp
from launchers import (
    BOTH,
    INTERFACE,
    ORACLES,
    POISON,
    Segments,
    arguments,
    close,
    from_warp,
    inputs_of,
    launcher,
    lengths,
    make_inputs,
    to_warp,
    width_of,
    widths,
)

wp.init()
pytestmark = pytest.mark.skipif(not wp.is_cuda_available(), reason="no CUDA device")

IDX, M = np.concatenate([[-1], lengths(3, 0, 9, 70, 600, 1, 5000), [7, 9]]).astype(np.int32), 7


def arrays_on_gpu(name, values, width, scalar):
    """Arrays by argument, outputs poisoned."""
    found = {}
    for argument, kind, dimension in arguments(name):
        if argument == "M":
            found["M"] = M
            continue
        length = len(IDX) if dimension == "n" else M
        shape = (length,) if kind in (None, *"SRi") else (length, width_of(kind, width))
        data = IDX if argument == "idx" else values.get(argument, np.full(shape, POISON))
        found[argument] = to_warp(data, kind or "i", scalar).to("cuda:0")
    return found


def compare(name, values, arrays, scalar):
    expected = ORACLES[name](Segments(IDX, M), *(values[a] for a in inputs_of(name)))
    for argument, value in expected.items():
        close(from_warp(arrays[argument]), value, scalar, scale=10_000)


@pytest.mark.parametrize("scalar", BOTH)
@pytest.mark.parametrize("name", INTERFACE)
def test_gpu_values(name, scalar):
    for width in widths(name):
        values = make_inputs(name, IDX, M, width, scalar)
        arrays = arrays_on_gpu(name, values, width, scalar)
        launcher(name)(**arrays)
        compare(name, values, arrays, scalar)


@pytest.mark.parametrize("name", INTERFACE)
def test_gpu_capture(name):
    width = widths(name)[-1]
    values = make_inputs(name, IDX, M, width, np.float32)
    launcher(name)(**arrays_on_gpu(name, values, width, np.float32))  # compiles
    arrays = arrays_on_gpu(name, values, width, np.float32)
    with wp.ScopedCapture(device="cuda:0") as capture:
        launcher(name)(**arrays)
    wp.capture_launch(capture.graph)
    compare(name, values, arrays, np.float32)
