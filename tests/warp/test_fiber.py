# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels with their thread blocks, as cooperative fibers on the CPU, through the same host code.

They must give the native engine's bits. Fibers are slow (45 ms for 1e5 threads), so N stays small.
"""

import numpy as np
import pytest
import warp as wp
from launchers import BOTH, INTERFACE, call, lengths, make_inputs, route, same_bits, sorted_idx, widths

from segmentops.kernels import _packed, launch
from segmentops.kernels.reduce import TERMS

DISTRIBUTIONS = {
    "singletons": (np.arange(600, dtype=np.int32), 600),
    "short": (sorted_idx(700, 250), 250),
    "teams": (lengths(8, 9, 63, 64, 65, 1, 127, 128, 129, 0, 170, 200, 255), 13),
    "blocks": (lengths(511, 512, 513, 3, 2047, 2048, 2049), 7),
    "supers": (lengths(3, 4095, 4096), 3),
    "giant": (lengths(*[1] * 300, 7000, *[1] * 300), 601),
    "gaps": (np.sort(np.random.default_rng(0).choice(5000, 40)).astype(np.int32), 5000),
    "padding": (np.array([-9, -1, *sorted_idx(300, 9), 9, 2**31 - 1], dtype=np.int32), 9),
}


@pytest.mark.parametrize("scalar", BOTH)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_fiber_bits(distribution, scalar):
    idx, m = DISTRIBUTIONS[distribution]
    for name in INTERFACE:
        for width in widths(name):
            same_bits(name, idx, m, width, scalar, ("engine", "fibers"))


@pytest.mark.parametrize("scalar", BOTH)
def test_fiber_no_elements(scalar):
    idx = np.empty(0, np.int32)
    for name in INTERFACE:
        if name not in ("segmented_max", "segmented_min"):
            same_bits(name, idx, 5, widths(name)[-1], scalar, ("engine", "fibers"))


@pytest.mark.parametrize("scalar", BOTH)
def test_fiber_strided(scalar):
    idx, m = DISTRIBUTIONS["teams"]
    for name in INTERFACE:
        same_bits(name, idx, m, widths(name)[-1], scalar, ("engine", "fibers"), strided=(False, True))


def test_fiber_many_supers_and_many_segments():
    """More than 64 supers; and more segments than one thread block would fill with zeros."""
    for name in ("segmented_sum", "segmented_dot"):
        same_bits(name, lengths(5, 70_000, 2), 3, 3, np.float32, ("engine", "fibers"))
    same_bits("segmented_sum", lengths(5, 270_000, 2), 3, 1, np.float64, ("engine", "fibers"))
    idx = np.array([0, 7, 7, launch.INLINE_GAPS + 5], dtype=np.int32)
    for name in ("segmented_sum", "segmented_mean", "segmented_max_norm_forward_precompute"):
        same_bits(name, idx, launch.INLINE_GAPS + 9, widths(name)[-1], np.float32, ("engine", "fibers"))


def test_fiber_runs_what_cuda_runs(monkeypatch):
    """The fibers of these tests are thread blocks of the cooperative kernels, not the serial ones."""
    launched = []
    monkeypatch.setattr(
        _packed.Packed, "run", lambda self, dim, *_: launched.append((self.kernel.module.name, self.block, dim[-1]))
    )
    x = wp.zeros((300, 3), dtype=wp.float32, device="cpu")
    rows = launch.Rows(x, x.ptr, wp.float32, x.shape, x.strides)
    out = wp.zeros((2, 9), dtype=wp.float32, device="cpu")
    idx = wp.zeros(300, dtype=wp.int32, device="cpu")
    with route("fibers"):
        for term in ("sum", "dot", "dot_add", "inner_products", "outer", "max"):
            columns = {"sum": 3, "inner_products": 3, "outer": 9}.get(term, 1)
            data = (rows,) * {"sum": 1, "max": 1, "dot_add": 4}.get(term, 2)
            flat = term in ("dot", "dot_add", "inner_products")
            launch.reduce(term, data, idx, 2, flat=flat, columns=columns, j=3 if term == "outer" else 0, out=out)
        one = launch.Rows(x, x.ptr, wp.float32, (300, 1), x.strides)
        launch.reduce("sum", (one,), idx, 2, out=out)
        for width in (1, 3):  # means of float64 have kernels of their own
            x = wp.zeros((300, width), dtype=wp.float64, device="cpu")
            rows = launch.Rows(x, x.ptr, wp.float64, x.shape, x.strides)
            launch.reduce("sum", (rows,), idx, 2, mode=launch.MEAN, columns=width, out=rows)
    names = {name.split(".")[3] for name, _, _ in launched}
    assert names == set(TERMS) - {"outer"}
    assert {tuple(sizes) for _, *sizes in launched} == {(256, 256)}


def test_fiber_launches_are_few(monkeypatch):
    """Reductions of up to 1e4 elements take at most two launches; a short one takes one."""
    launches = []
    monkeypatch.setattr(launch, "_launch", lambda kernel, *_, **__: launches.append(kernel.key))
    for n, m, most in ((1000, 100, 1), (10_000, 1000, 2), (10_000, 100_000, 2)):
        for name in INTERFACE:
            if name.endswith("backward") or name == "segmented_count":
                continue
            launches.clear()
            with route("fibers"):
                call(name, make_inputs(name, sorted_idx(n, m), m, 3, np.float32), sorted_idx(n, m), m, 3, np.float32)
            assert len(launches) <= most, (name, launches)
