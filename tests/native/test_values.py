# SPDX-License-Identifier: Apache-2.0
"""Every function against its definition in extended precision, over widths, index types and numbers of threads."""

import numpy as np
import pytest
from native.harness import DTYPES, HALF, OPS, call, expected, kind, make_inputs, rounded, sorted_idx

WIDTHS = [1, 2, 3, 4, 5, 8, 9, 16, 33]
MATRICES = [(3, 3), (1, 1), (2, 3), (3, 2), (4, 4), (5, 17)]
SHAPES = {name: MATRICES if op.matrix else [(k, 1) for k in WIDTHS] for name, op in OPS.items()}
CASES = [pytest.param(name, k, j, id=f"{name}-{k}-{j}") for name in OPS for k, j in SHAPES[name]]

# Lengths of segments and empty segments before each: short, dense, mixed, long, and one that crosses threads.
BATCHES = {
    "tiny": ([4, 7, 1], [0, 0, 0]),
    "twos": ([2] * 40, [0] * 40),
    "gaps": ([1, 3, 70, 2, 9, 129, 1], [2, 0, 1, 0, 0, 5, 1]),
    "mixed": (list(range(1, 60)) + [300, 5, 65], [0, 1, 0] * 20 + [0, 3]),
    "long": ([3, 9000, 40, 4100], [0, 1, 0, 2]),
}


def compare(name, got, want, dtype):
    for key, value in got.items():
        mine = kind(OPS[name].outputs[key], dtype, False)
        if mine in HALF.values():  # the one number that is nearest
            np.testing.assert_array_equal(value, rounded(want[key], dtype), err_msg=key)
            continue
        if np.issubdtype(mine, np.integer):
            np.testing.assert_array_equal(value, want[key], err_msg=key)
            continue
        bound = 8 * np.finfo(mine).eps
        scale = np.abs(want[key]).max(initial=1e-300)
        np.testing.assert_allclose(value, want[key].astype(np.float64), rtol=bound, atol=bound * scale, err_msg=key)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name, k, j", CASES)
def test_definition(name, k, j, suffix):
    dtype = DTYPES[suffix]
    for batch, (lengths, gaps) in BATCHES.items():
        if batch == "long" and (k > 9 or j > 4):
            continue
        for wide in (False, True):
            idx, where = sorted_idx(lengths, gaps, wide)
            m = int(where[-1]) + 3
            inputs = make_inputs(name, dtype, len(idx), m, k, j)
            want = expected(name, inputs, idx, m)
            for threads in (1, 2, 3, 8) if not wide else (1, 3):
                compare(name, call(name, inputs, idx, m, k, j, threads=threads), want, dtype)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.optional])
def test_outputs_that_are_not_wanted(name, suffix):
    dtype = DTYPES[suffix]
    idx, where = sorted_idx(*BATCHES["mixed"])
    m, k, j = int(where[-1]) + 1, 3, 3 if OPS[name].matrix else 1
    inputs = make_inputs(name, dtype, len(idx), m, k, j)
    everything = call(name, inputs, idx, m, k, j, threads=2)
    for missing in OPS[name].optional:
        for want in ({missing}, OPS[name].optional - {missing}):
            some = call(name, inputs, idx, m, k, j, threads=2, want=want)
            for key, value in some.items():
                assert value.tobytes() == everything[key].tobytes(), key


def test_no_elements_and_no_segments():
    for name in OPS:
        for dtype in DTYPES.values():
            for n, m in ((0, 5), (0, 0)):
                idx = np.zeros(n, np.int32)
                inputs = make_inputs(name, dtype, n, m, 3, 3)
                for key, value in call(name, inputs, idx, m, 3, 3, threads=2).items():
                    assert (value == (-1 if key == "at" else 0)).all(), (name, key)
