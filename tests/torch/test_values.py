# SPDX-License-Identifier: Apache-2.0
"""Values of every op against NumPy: every width, dtype, segment layout and memory layout."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import OPS
from torch_battery import (
    LENGTHS,
    Case,
    assert_within,
    every_case,
    every_layout,
    every_op,
    every_op_and_dtype,
    every_width,
    make_index,
    same_bits,
)

from segmentops.torch.segment_ops import segmented_matvec, segmented_mul, segmented_sum

UNITS = 5  # the promise is 4 eps; one more for the oracle's own products and roots in float64


def check(case, inputs, idx, m):
    before = [a.clone() for a in inputs]
    index_before = idx.clone()
    out = case(*inputs, idx, m)
    assert out.dtype == case.dtype and out.is_contiguous() and not out.requires_grad
    assert all(map(same_bits, inputs, before)) and torch.equal(idx, index_before), "an input was modified"
    assert_within(out, *case.oracle(inputs, idx, m), UNITS)
    return out


@every_case
@every_layout
def test_values(case, lengths):
    idx, m = case.index(lengths), len(lengths)
    out = check(case, case.inputs(len(idx), m), idx, m)
    if case.op.reduces:
        empty = torch.tensor(lengths, dtype=torch.long) == 0
        assert (out[empty] == 0).all() and not torch.signbit(out[empty]).any()


@every_width
@settings(max_examples=12)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 4), st.integers(0, 140)), max_size=24),
    seed=st.integers(0, 2**20),
    exponent=st.integers(-12, 12),
)
def test_any_segments(case, lengths, seed, exponent):
    idx, m = case.index(lengths), len(lengths)
    inputs = [a * 10.0**exponent for a in case.inputs(len(idx), m, seed)]
    check(case, inputs, idx, m)


@every_op_and_dtype
def test_many_and_long_segments(case):
    g = case.generator(5)
    for lengths in (
        [20_000],
        torch.randint(0, 30, (3000,), generator=g).tolist(),
        [1] * 5000 + [0] * 500 + [9000, 1],
    ):
        idx, m = case.index(lengths), len(lengths)
        inputs = case.inputs(len(idx), m)
        out = case(*inputs, idx, m)
        ends = np.cumsum([0, *lengths])
        for s in {0, 1, m // 2, m - 2, m - 1} & set(range(m)):  # NumPy would take minutes for all of them
            rows = {"element": slice(int(ends[s]), int(ends[s + 1])), "segment": slice(s, s + 1)}
            own = [a[rows[arg.kind]] for a, arg in zip(inputs, case.op.args, strict=True)]
            expected = case.oracle(own, torch.zeros(lengths[s], dtype=torch.int32), 1)
            assert_within(out[rows[case.op.out.kind]], *expected, UNITS)


# ------------------------------------------------------------------ shapes
@every_case
def test_no_elements(case):
    for m in (3, 0):
        idx = torch.empty(0, dtype=case.index_dtype)
        out = check(case, case.inputs(0, m), idx, m)
        assert out.shape == case.op.out.shape(0, m, case.width) and (out == 0).all()


@every_op_and_dtype
@pytest.mark.parametrize("which", range(2))
def test_rows_without_scalars(case, which):
    """A trailing dimension of 0, of matrices either one."""
    matrix = case.op.matrices
    case = Case(case.op, ((0, 2), (2, 0))[which] if matrix else ((0,), (2, 0))[which], case.dtype, case.index_dtype)
    idx = torch.tensor([0, 0, 2], dtype=torch.int32)
    check(case, case.inputs(3, 3), idx, 3)
    inputs = case.inputs(3, 3, grad=True)
    grads = torch.autograd.grad(case(*inputs, idx, 3), inputs, case.weights(3, 3), create_graph=True)
    assert all(torch.equal(g, torch.zeros_like(g)) for g in grads)


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 1, 1, 1), (3, 1, 2), (35,), (1091,)])
@pytest.mark.parametrize("op", [o for o in OPS if o.short != "matvec"], ids=lambda o: o.short)
def test_any_trailing_shape(op, shape):
    for dtype in (torch.float32, torch.float64):
        case = Case(op, shape, dtype, torch.int32)
        idx = case.index(LENGTHS["mixed"])
        check(case, case.inputs(len(idx), 5), idx, 5)


@pytest.mark.parametrize("k,j", [(1, 1), (1, 5), (5, 1), (17, 2), (2, 17), (16, 16)])
def test_any_matrix(k, j):
    case = Case(OPS[-1], (k, j), torch.float64, torch.int32)
    idx = case.index(LENGTHS["mixed"])
    # the sum over k runs in order, in float64: k roundings at worst
    inputs = case.inputs(len(idx), 5)
    assert_within(case(*inputs, idx, 5), *case.oracle(inputs, idx, 5), max(UNITS, k / 2 + 2))


# Around the sizes at which an implementation changes its ways: vectors, groups of columns, cache lines.
COLUMNS = (1, 2, 7, 8, 9, 31, 32, 33, 34, 35, 36, 127, 128, 129, 512)
RECTANGLES = ((1, 512), (512, 1), (31, 36), (35, 33), (3, 129), (128, 2))
WIDE = [(op, width) for op in OPS for width in (RECTANGLES if op.matrices else [(k,) for k in COLUMNS])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op,width", WIDE, ids=lambda v: getattr(v, "short", None) or "x".join(map(str, v)))
def test_wide_rows(op, width, dtype):
    """Values and gradients of rows of 1 to 512 numbers, against NumPy."""
    case = Case(op, width, dtype, torch.int32)
    idx, m = case.index((3, 0, 70, 1, 9)), 5
    inputs = case.inputs(len(idx), m, grad=True)
    g = case.weights(len(idx), m)
    out = case(*inputs, idx, m)
    units = max(UNITS, max(width) / 4)  # the oracle's products over a row are summed in float64, too
    assert_within(out.detach(), *case.oracle(inputs, idx, m), units if dtype == torch.float64 else UNITS)
    found = torch.autograd.grad(out, inputs, g)
    arrays = [a.detach().double().numpy() for a in (*inputs, g)]
    expected = case.op.gradient(*arrays, idx.numpy(), m)
    for a, (value, scale) in zip(found, expected, strict=True):
        assert a.is_contiguous() and a.dtype == dtype
        assert_within(a, torch.from_numpy(value), torch.from_numpy(scale), units if dtype == torch.float64 else UNITS)


# ------------------------------------------------------------------ memory layouts
def _strided(a):
    wide = torch.full((2 * a.shape[0], *a.shape[1:]), 777.0, dtype=a.dtype)
    wide[::2] = a
    return wide[::2]


def _every_other_column(a):
    wide = torch.full((*a.shape, 3), 777.0, dtype=a.dtype)
    wide[..., 1] = a
    return wide[..., 1]


def _transposed(a):
    return a.permute(*reversed(range(a.dim()))).contiguous().permute(*reversed(range(a.dim())))


def _offset(a):
    """Contiguous, but not aligned to a vector."""
    return torch.cat([a.new_full((1,), 777.0), a.reshape(-1)])[1:].view(a.shape)


def _flipped(a):
    return a.flip(0).flip(0)


def _same_row(a):
    return a[:1].expand(a.shape)


def _one_number(a):
    return a.reshape(-1)[:1].reshape((1,) * a.dim()).expand(a.shape)


def _negated(a):
    """A view whose negation is pending: a flag, not memory."""
    return torch.complex(torch.zeros_like(a), -a).conj().imag


MEMORY = [_strided, _every_other_column, _transposed, _offset, _flipped, _same_row, _one_number, _negated]


@every_width
@pytest.mark.parametrize("layout", MEMORY, ids=lambda f: f.__name__.strip("_"))
def test_memory_layouts(case, layout):
    idx, m = case.index(LENGTHS["mixed"]), 5
    plain = case.inputs(len(idx), m)
    for which in range(len(plain)):
        inputs = [layout(a) if k == which else a for k, a in enumerate(plain)]
        check(case, inputs, idx, m)
    check(case, [layout(a) for a in plain], idx, m)


@every_case
def test_index_layouts(case):
    m = 5
    idx = case.index(LENGTHS["mixed"])
    inputs = case.inputs(len(idx), m)
    expected = case(*inputs, idx, m)
    for view in (
        torch.stack([idx, idx + 9], 1).reshape(-1)[::2],
        torch.stack([idx, idx + 9], 1)[:, 0],
        torch.cat([idx[:1] + 50, idx])[1:],
    ):
        assert torch.equal(view, idx)
        assert same_bits(case(*inputs, view, m), expected)
    expanded = idx.new_tensor([2]).expand(len(idx))
    check(case, inputs, expanded, m)


@every_op
def test_output_is_new_memory(case):
    """Also where there is nothing to add: one element a segment."""
    idx = torch.arange(4, dtype=torch.int32)
    inputs = case.inputs(4, 4)
    before = [a.clone() for a in inputs]
    out = case(*inputs, idx, 4)
    out.fill_(7.0)
    assert all(map(same_bits, inputs, before))
    assert not (case(*inputs, idx, 4) == 7.0).any()


# ------------------------------------------------------------------ calls
@every_case
def test_keywords(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m)
    named = dict(zip([a.name for a in case.op.args], inputs, strict=True))
    expected = case(*inputs, idx, m)
    assert same_bits(case(**named, idx=idx, num_segments=m), expected)
    assert same_bits(case(*inputs, idx, num_segments=m), expected)
    assert same_bits(case(*inputs, num_segments=m, idx=idx), expected)


@every_op
def test_parameters_are_tensors_too(case):
    idx, m = case.index(LENGTHS["mixed"]), 5
    inputs = case.inputs(len(idx), m)
    out = case(*[torch.nn.Parameter(a) for a in inputs], idx, m)
    assert out.requires_grad and same_bits(out.detach(), case(*inputs, idx, m))
    with torch.no_grad():
        assert not case(*[torch.nn.Parameter(a) for a in inputs], idx, m).requires_grad


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_quick_start(dtype):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], requires_grad=True)
    idx = torch.tensor([0, 0, 1, 1, 1, 2], dtype=dtype)
    out = segmented_sum(x, idx, num_segments=3)
    assert out.tolist() == [3.0, 12.0, 6.0]
    out.sum().backward()
    assert x.grad.tolist() == [1.0] * 6


def test_numbers_by_hand():
    """Numbers worked out by hand, so that not even NumPy is trusted."""
    from segmentops.torch import segment_ops as ops

    idx = torch.tensor([0, 0, 1, 3], dtype=torch.int32)
    x = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 5.0], [1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    y = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 0.0, -1.0], [9.0, 9.0, 9.0]])
    s = torch.tensor([2.0, -1.0, 100.0, 0.5])
    assert ops.segmented_sum(x, idx, 4).tolist() == [[3, 4, 5], [1, 2, 2], [0, 0, 0], [0, 0, 0]]
    assert ops.segmented_mean(x, idx, 4).tolist() == [[1.5, 2, 2.5], [1, 2, 2], [0, 0, 0], [0, 0, 0]]
    assert ops.segmented_dot(x, y, idx, 4).tolist() == [17, -1, 0, 0]
    assert ops.segmented_rms_norm(x, idx, 4).tolist() == [5, 3, 0, 0]
    assert ops.segmented_max_norm(x, idx, 4).tolist() == [5, 3, 0, 0]
    assert ops.segmented_mul(x, s, idx, 4).tolist() == [[6, 8, 0], [0, 0, 10], [-1, -2, -2], [0, 0, 0]]
    turn = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    m = torch.stack([turn, torch.eye(3) * 2, turn, torch.ones(3, 3)])
    assert ops.segmented_matvec(x, m, idx, 4).tolist() == [[-4, 3, 0], [0, 0, 5], [2, 4, 4], [0, 0, 0]]


def test_index_is_read_as_given():
    """int64 idx is not narrowed on the way, int32 not widened into something that is kept."""
    x = torch.arange(6.0)
    for dtype in (torch.int32, torch.int64):
        idx = make_index((3, 0, 3), dtype)
        assert segmented_sum(x, idx, 3).tolist() == [3.0, 0.0, 12.0]
        assert idx.dtype == dtype


def test_more_segments_than_int32_counts():
    """Numbers of segments beyond 2**31, and elements that are far apart: 17 GB of address space, no memory."""
    m = 2**32 - 10
    try:
        y = torch.empty(m)
    except RuntimeError:
        pytest.skip("no address space")
    for n in (5, 300, 1000):
        idx = torch.linspace(0, m - 1, n, dtype=torch.float64).long()
        y[idx] = 2.0
        assert (segmented_mul(torch.ones(n), y, idx, m) == 2).all()
        assert (segmented_mul(torch.ones(n, 3), y, idx, m) == 2).all()
        assert (segmented_matvec(torch.ones(n, 1), y.view(m, 1, 1), idx, m) == 2).all()
