# SPDX-License-Identifier: Apache-2.0
"""The bits of a segment are a function of its own elements: wherever it lies, whatever is beside it, on any number of
threads.

So every segment of a batch is compared with itself alone. The lengths lie around the rule's own sizes: rows of 8,
blocks of 64, supers of 4096. (test_build breaks the rule on purpose, to see that this would be noticed.)
"""

import numpy as np
import pytest
from native.harness import DTYPES, OPS, call, make_inputs, same_bits, shape, sorted_idx

from segmentops.ops.calculus import PROGRAMS, calls

SHORT = [*range(1, 20), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
LONG = [4095, 4096, 4097, 4160, 8192, 70_001]
WIDTHS: dict = {
    "sum": [1, 2, 3, 8, 11, 40],
    "mean": [1, 3, 5],
    "dot": [1, 3, 7],
    "rms_norm": [1, 3, 5],
    "mul_backward": [1, 3],
    "dot_add": [1, 3],
    "rms_norm_double_backward": [1, 3],
    "max_norm": [1, 3, 4],
    "outer": [(3, 3), (2, 9)],
    "matvec_backward": [(3, 3), (2, 9)],
    "mul_double_backward": [1, 3],
    "dot_double_backward": [1, 3],
    "matvec_double_backward": [(3, 3)],
}
CASES = [
    pytest.param(name, *(w if isinstance(w, tuple) else (w, 1)), id=f"{name}-{w}")
    for name, ws in WIDTHS.items()
    for w in ws
]


def test_every_reduction_is_covered():
    assert set(WIDTHS) == {name for name, op in OPS.items() if op.reduces} - {"spread"}


def spread_out(x, g):
    """Over 40 binades, as far as float16 has them: any change of the order of additions changes the bits."""
    most = 20 if x.dtype != np.float16 else 6
    return (x * np.exp2(g.integers(-most, most, x.shape)).astype(x.dtype)).astype(x.dtype)


def wild(name, dtype, n, m, k, j, seed):
    g = np.random.default_rng(seed)
    return {key: spread_out(x, g) for key, x in make_inputs(name, dtype, n, m, k, j, seed).items()}


def cut(name, inputs, rows, s):
    """The inputs of one segment: its elements `rows`, its own row of every segment array."""
    specs = OPS[name].inputs
    return {key: x[rows] if specs[key].startswith("n") else x[s : s + 1] for key, x in inputs.items()}


def check_batch(name, dtype, lengths, gaps, k, j, seed, threads, lead=0, alone=None, **options):
    """Each segment of the batch against itself alone; `lead` elements of segment 0 come before them, full of NaN."""
    gaps = [gaps[0] + (lead > 0), *gaps[1:]]
    idx, where = sorted_idx(lengths, gaps, options.pop("wide", False))
    m = int(where[-1]) + 1 + seed % 20
    idx = np.concatenate([np.zeros(lead, idx.dtype), idx])
    inputs = wild(name, dtype, len(idx), m, k, j, seed)
    for key, spec in OPS[name].inputs.items():
        if spec.startswith("n"):
            inputs[key][:lead] = np.nan
    starts = lead + np.concatenate([[0], np.cumsum(lengths)])
    rows = [slice(starts[q], starts[q + 1]) for q in range(len(lengths))]
    single = [
        call(name, cut(name, inputs, row, s), np.zeros(row.stop - row.start, np.int32), 1, k, j)
        for row, s in zip(rows, where, strict=True)
    ]
    for t in threads:
        out = call(name, inputs, idx, m, k, j, threads=t)
        for key, spec in OPS[name].outputs.items():
            for row, s, one in zip(rows, where, single, strict=True):
                mine = out[key][row] if spec.startswith("n") else out[key][s : s + 1]
                if key == "at":
                    mine = mine - row.start
                assert same_bits(np.ascontiguousarray(mine), one[key]), (name, key, row, t)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name, k, j", CASES)
def test_short_segments(name, k, j, suffix):
    g = np.random.default_rng(1)
    for trial in range(6):
        top = [257, 257, 8, 40, 130, 257][trial]
        lengths = [x for x in SHORT if x <= top] * (1 if top > 200 else 5)
        g.shuffle(lengths)
        gaps = g.choice([0, 0, 0, 1, 5], len(lengths)) if trial % 2 else np.zeros(len(lengths), int)
        check_batch(name, DTYPES[suffix], lengths, list(gaps), k, j, trial, (1, 2, 3, 8),
                    lead=int(g.integers(0, 70)) * (trial > 1), wide=trial == 5)  # fmt: skip


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name, k, j", CASES)
def test_long_segments(name, k, j, suffix):
    if k * j > 9:
        pytest.skip("the same code as narrower ones")
    for seed, lengths in enumerate(([5, 4097, 4095, 3, 8192], [70_001, 2, 4160], [1, 4096, 70_001])):
        check_batch(name, DTYPES[suffix], lengths, [0] * len(lengths), k, j, seed, (1, 2, 3, 8), lead=seed * 33)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name, k", [("sum", 1), ("sum", 3), ("dot", 3), ("max_norm", 3)])
def test_a_million(name, k, suffix):
    check_batch(name, DTYPES[suffix], [3, 1_000_003, 40_000], [0, 0, 0], k, 1, 5, (1, 2, 3, 8), lead=7)


@pytest.mark.parametrize("suffix", DTYPES)
def test_wide_rows_on_many_threads(suffix):
    """How many columns a pass over the data takes depends on the number of threads."""
    check_batch("sum", DTYPES[suffix], [3, 270_003, 500], [0, 0, 0], 34, 1, 5, (1, 2, 16, 64), lead=7)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 3])
def test_every_shift(k, suffix):
    """A segment shifted by 1 .. 70 elements of a neighbour."""
    dtype = DTYPES[suffix]
    g = np.random.default_rng(0)
    x = spread_out(g.standard_normal((4200, k)).astype(dtype), g)
    for n in (5, 64, 130, 4200):
        alone = call("sum", {"x": x[:n]}, np.zeros(n, np.int32), 1, k)["out"]
        for shift in range(1, 71):
            y = np.concatenate([np.full((shift, k), np.inf, dtype), x[:n], x[: shift // 2]])
            idx, _ = sorted_idx([shift, n, shift // 2])
            out = call("sum", {"x": y}, idx, 3, k, threads=1 + shift % 3)["out"]
            assert same_bits(out[1:2], alone), (n, shift)


@pytest.mark.parametrize("suffix", DTYPES)
def test_columns_follow_the_width_three_rule(suffix):
    """Each column of a wide sum has the bits of a column of a sum of width three: two pieces of code, one rule."""
    for lengths in ([*SHORT, 4095, 4097, 70_001], [2] * 99):
        idx, where = sorted_idx(lengths)
        x = wild("sum", DTYPES[suffix], len(idx), 1, 3, 1, 3)["x"]
        three = call("sum", {"x": x}, idx, len(lengths), 3, threads=3)["out"]
        for copies in (2, 3, 5, 14):
            wide = np.ascontiguousarray(np.tile(x, copies))
            out = call("sum", {"x": wide}, idx, len(lengths), 3 * copies, threads=2)["out"]
            assert same_bits(out, np.tile(three, copies)), copies


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if len(program.outputs) > 1])
def test_fused_outputs_are_those_of_the_single_functions(name, suffix):
    program = PROGRAMS[name]
    dtype = DTYPES[suffix]
    shapes = [(3, 3), (2, 5)] if OPS[name].matrix else [(1, 1), (3, 1), (6, 1)]
    lengths = [*SHORT, 5000, 3, 1]
    idx, where = sorted_idx(lengths, [q % 3 == 2 for q in range(len(lengths))])
    m = int(where[-1]) + 2
    for k, j in shapes:
        inputs = wild(name, dtype, len(idx), m, k, j, 4)
        for threads in (1, 2, 8):
            fused = call(name, inputs, idx, m, k, j, threads=threads)
            for key, terms in program.outputs.items():
                (single,) = calls(terms, program.inputs)
                theirs = dict(zip(OPS[single.primitive].inputs, (inputs[x] for x in single.operands), strict=True))
                out = call(single.primitive, theirs, idx, m, k, j)
                assert same_bits(fused[key].reshape(-1), next(iter(out.values())).reshape(-1)), (key, threads)


def test_shapes_of_the_table():
    """Segment arrays are cut by row above: every input is per element or per segment."""
    for op in OPS.values():
        for spec in op.inputs.values():
            assert shape(spec, 2, 3, 4, 5)[0] in (2, 3)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_sign_of_a_zero_does_not_depend_on_the_batch(k, suffix):
    dtype = DTYPES[suffix]
    for m in (1, 5, 40):
        for each in (1, 3, 40):
            idx = np.repeat(np.arange(m, dtype=np.int32), each)
            x = np.where(np.arange(m * each * k) % 2, 1, -1).astype(dtype).reshape(-1, k)
            out = call("mul", {"x": x, "s": np.full(m, -0.0, dtype)}, idx, m, k)["out"]
            assert (out == 0).all() and (np.signbit(out) == ~np.signbit(x)).all(), (m, each)
