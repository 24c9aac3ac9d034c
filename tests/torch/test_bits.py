# SPDX-License-Identifier: Apache-2.0
"""The bits of a segment depend on its own elements alone: not on its batch, its place, or the threads.

A molecule is the rows of every array that belong to one segment: inputs, and the cotangents of the first and
the second derivative. Each is evaluated alone on one thread; then in batches, where its rows of every result
must be the same to the last bit. Only the ops run between inputs and results: nothing else can differ.

Sums of the numbers used here cancel to a part in 1e15: then another order of additions shows even in float32
results, which are rounded from a float64 accumulator and would hide it otherwise.
"""

import itertools
from functools import cache

import pytest
import torch
from oracles import OPS
from torch_battery import DTYPES, Case, derivatives, every_op_and_dtype, over, same_bits, slots

from segmentops.torch import segment_ops

THREADS = (1, 2, 3, 8)
AROUND = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 70, 127, 128, 129, 257, 1000, 4095, 4096, 4097)

# Width 1 and 3 have code of their own, the rest share a path; matrices: one square, one not.
some_widths = over(index_dtypes=(torch.int32,), widths=3)


def arrays(case: Case):
    """Every array of a molecule: inputs, then the cotangents of two orders."""
    return [*case.op.args, *itertools.chain(*slots(case.op, 2))]


@cache
def molecule(case: Case, length: int, seed: int = 0):
    """Random rows whose sum nearly cancels, over sixty powers of two."""
    g = case.generator(1000 * seed + length)
    found = []
    for a in arrays(case):
        shape = a.shape(length, 1, case.width)
        if a.kind == "segment":
            found.append(torch.randn(shape, generator=g, dtype=torch.float64).to(case.dtype))
            continue
        half = torch.randn((length // 2, *shape[1:]), generator=g, dtype=torch.float64)
        rest = torch.randn((length % 2, *shape[1:]), generator=g, dtype=torch.float64)
        size = torch.exp2(torch.randint(-30, 31, (length // 2,), generator=g).double() / len(case.op.args))
        half = half * size.view(-1, *[1] * (len(shape) - 1))
        if found:  # of a product one factor changes sign
            rows = torch.cat([half, half, rest])
        else:
            rows = torch.cat([half, -half, rest])
        found.append(rows.to(case.dtype))
    order = torch.randperm(length, generator=g)
    return [a[order] if k.kind == "element" else a for a, k in zip(found, arrays(case), strict=True)]


def evaluate(case: Case, rows, lengths, order: int = 2, graph: bool = False):
    """Results of a batch: the value, first and second derivatives. `lengths[s] = 0` is an empty segment."""
    idx, m = case.index(lengths), len(lengths)
    inputs, cotangents = rows[: len(case.op.args)], rows[len(case.op.args) :]
    first, second = cotangents[:1], cotangents[1:]
    found = derivatives(lambda *a: case(*a, idx, m), inputs, [first, second][:order], graph)
    return list(itertools.chain(*found))


def results(case: Case):
    return [case.op.out, *case.op.args, *case.op.args, case.op.out]


@cache
def alone(case: Case, length: int, seed: int = 0, graph: bool = False):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return evaluate(case, molecule(case, length, seed), [length], graph=graph)
    finally:
        torch.set_num_threads(before)


def batch(case: Case, molecules):
    """Rows and lengths of molecules (length, seed) and of empty segments (0, 0) in this order."""
    lengths = [length for length, _ in molecules]
    return [torch.cat(a) for a in zip(*(molecule(case, *m) for m in molecules), strict=True)], lengths


def check(case: Case, molecules, graph: bool = False):
    """Every molecule of the batch has the bits that it has alone."""
    rows, lengths = batch(case, molecules)
    found = evaluate(case, rows, lengths, graph=graph)
    own = zip(*(alone(case, *m, graph) for m in molecules), strict=True)
    for k, (array, a, parts) in enumerate(zip(results(case), found, own, strict=True)):
        b = torch.cat(parts)
        if not same_bits(a, b):
            row = int((a != b).view(len(a), -1).any(1).nonzero()[0])
            s = row if array.kind == "segment" else int(case.index(lengths)[row])
            pytest.fail(f"result {k}: segment {s} of {lengths[s]} elements, behind {sum(lengths[:s])}")


# ------------------------------------------------------------------ place in the batch
@some_widths
def test_first_last_and_between(case, threads):
    """All lengths in one batch, in several orders, with empty segments between."""
    g = case.generator(7)
    for trial, n in enumerate(THREADS):
        threads(n)
        order = [AROUND[i] for i in torch.randperm(len(AROUND), generator=g)]
        molecules = [(length, trial % 2) for length in order]
        for position in (0, 5, 6, 20, len(molecules)):
            molecules.insert(position, (0, 0))
        check(case, molecules)
        check(case, molecules[::-1])


@some_widths
def test_derivatives_that_have_a_graph(case, threads):
    """Where a third derivative may follow, the second one is computed in another way."""
    for n in (1, 2):
        threads(n)
        check(case, [(70, 1), (0, 0), *((length, 0) for length in AROUND), (0, 0), (3, 1)], graph=True)


@over(index_dtypes=(torch.int32,), widths=2)
def test_shifted(case):
    """Behind 1 to 70 other elements, of one segment or of many."""
    for shift in range(1, 71):
        length = (1, 7, 8, 9, 16, 17, 64, 65, 130)[shift % 9]
        check(case, [(shift, 1), (length, 0), (3, 0)])
        if shift % 5 == 2:
            check(case, [(1, 1)] * shift + [(length, 0)])


@some_widths
def test_many_short_segments(case, threads):
    """Batches of short segments take other code than a short segment alone."""
    g = case.generator(8)
    for longest, number in ((2, 3000), (8, 2000), (40, 800)):
        lengths = torch.randint(0, longest + 1, (number,), generator=g).tolist()
        molecules = [(length, k % 3 if length else 0) for k, length in enumerate(lengths)]
        for n in (1, 2):
            threads(n)
            check(case, molecules)


@over(index_dtypes=(torch.int32,), widths=2)
def test_long_segments(case, threads):
    """More elements than one thread takes: alone, behind, before and between others."""
    threads(1)
    long = (70_001, 0)
    for n in THREADS:
        threads(n)
        check(case, [long])
        check(case, [(70, 1), long, (4097, 0)])
    check(case, [(1, 1)] * 3000 + [long, (0, 0), (8, 0)])


@over(index_dtypes=(torch.int32,), widths=2)
def test_a_million(case, threads):
    if case.width not in ((), (3,), (3, 3)) or case.width == (3,) and case.dtype == torch.float64:
        pytest.skip("memory and time")
    length = 1_000_003 if case.width == () else 300_007
    rows = molecule.__wrapped__(case, length)
    threads(1)
    own = evaluate(case, rows, [length], order=1)
    others = molecule(case, 65), molecule(case, 9)
    before = [torch.cat([a, b, c]) for a, b, c in zip(others[0], rows, others[1], strict=True)]
    for n in (2, 3, 8):
        threads(n)
        found = evaluate(case, before, [65, length, 9], order=1)
        for array, a, b in zip(results(case), found, own, strict=False):
            assert same_bits(a[slice(65, 65 + length) if array.kind == "element" else slice(1, 2)], b)


# ------------------------------------------------------------------ again
@every_op_and_dtype
def test_run_after_run(case, threads):
    """The same call, with every number of threads, on new memory: the same bits."""
    rows, lengths = batch(case, [(4097, 0), (0, 0), (9, 0), (20_000, 0), (64, 0)])
    expected = None
    for n in THREADS * 3:
        threads(n)
        found = evaluate(case, [a.clone() for a in rows], lengths)
        expected = expected or found
        assert all(map(same_bits, found, expected))


@every_op_and_dtype
@pytest.mark.parametrize("length", [5, 21, 64, 1000])
def test_eight_identical_molecules_twice(case, length):
    molecules = [(length, 0)] * 8
    for _ in range(2):
        check(case, molecules)


@every_op_and_dtype
def test_index_dtype_does_not_matter(case):
    rows, lengths = batch(case, [(n, 0) for n in AROUND])
    wide = Case(case.op, case.width, case.dtype, torch.int64)
    assert all(map(same_bits, evaluate(case, rows, lengths), evaluate(wide, rows, lengths)))


@every_op_and_dtype
def test_number_of_segments_does_not_matter(case):
    """Trailing empty segments change nothing."""
    rows, lengths = batch(case, [(9, 0), (130, 0)])
    own = evaluate(case, rows, lengths)
    for extra in (1, 7, 1000):
        added = [torch.cat([a, a.new_ones((extra, *a.shape[1:]))]) if k.kind == "segment" else a
                 for a, k in zip(rows, arrays(case), strict=True)]  # fmt: skip
        for a, b in zip(evaluate(case, added, lengths + [0] * extra), own, strict=True):
            assert same_bits(a[: len(b)], b)


# ------------------------------------------------------------------ NaN and infinity stay where they are
@over(index_dtypes=(torch.int32,), widths=2)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_one_segment_does_not_poison_another(case, poison):
    """A poisoned row of any array, values and cotangents alike, changes no bit of another segment."""
    molecules = [(9, 0), (1, 0), (70, 0), (3, 1), (130, 0), (8, 1)]
    starts = [0, *itertools.accumulate(length for length, _ in molecules)]
    rows, lengths = batch(case, molecules)
    clean = evaluate(case, rows, lengths)
    for victim, (which, array) in itertools.product((0, 2, 3, 5), enumerate(arrays(case))):
        rows_of = {"element": slice(starts[victim], starts[victim + 1]), "segment": slice(victim, victim + 1)}
        bad = [a.clone() for a in rows]
        bad[which][rows_of[array.kind]][-1] = poison
        touched = False
        for result, a, b in zip(results(case), evaluate(case, bad, lengths), clean, strict=True):
            own = rows_of[result.kind]
            touched |= not torch.isfinite(a[own]).all()
            a, b = a.clone(), b.clone()
            a[own] = b[own] = 0
            assert same_bits(a, b), f"{poison} in {array.name} of segment {victim}"
        if which < len(case.op.args) and not case.op.selects:
            assert touched, "the poison vanished"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_models_of_ops_keep_the_promise(dtype):
    """The output of one op is the input of the next: energies, forces and a Hessian-vector product."""
    case = Case(OPS[0], (3,), dtype, torch.int32)

    def model(x, lengths):
        idx, m = case.index(lengths), len(lengths)
        x = x.detach().requires_grad_()
        scaled = segment_ops.segmented_mul(x, segment_ops.segmented_rms_norm(x, idx, m), idx, m)
        energy = segment_ops.segmented_dot(scaled, x, idx, m)
        (force,) = torch.autograd.grad(energy, x, torch.ones_like(energy), create_graph=True)
        again = segment_ops.segmented_dot(force, x, idx, m)
        (product,) = torch.autograd.grad(again, x, torch.ones_like(again))
        return energy.detach(), force.detach(), product

    sizes = [5, 21, 64, 3, 1000, 17]
    parts = [molecule(case, n)[0] for n in sizes]
    together = model(torch.cat(parts), sizes)
    own = zip(*(model(x, [n]) for n, x in zip(sizes, parts, strict=True)), strict=True)
    assert all(same_bits(a, torch.cat(b)) for a, b in zip(together, own, strict=True))


# ------------------------------------------------------------------ these tests can fail
class _BrokenSum(torch.autograd.Function):
    """A sum in float64, rounded once, whose order of additions depends on where a segment lies."""

    @staticmethod
    def forward(ctx, x, idx, m, size):
        ctx.save_for_backward(idx)
        out = torch.zeros((m, *x.shape[1:]), dtype=torch.float64)
        for k in range(0, len(x), size()):
            rows = slice(k, k + size())
            out += torch.zeros_like(out).index_add_(0, idx[rows], x[rows].double())
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g.index_select(0, ctx.saved_tensors[0]), None, None, None


class _BrokenBroadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, idx, size):
        ctx.save_for_backward(idx)
        ctx.m, ctx.size = len(y), size
        return y.index_select(0, idx)

    @staticmethod
    def backward(ctx, g):
        return _BrokenSum.apply(g, ctx.saved_tensors[0], ctx.m, ctx.size), None, None


def _broken(size):
    def segmented_sum(x, idx, m):
        return _BrokenSum.apply(x, idx, m, size)

    def segmented_dot(x, y, idx, m):
        return _BrokenSum.apply((x.double() * y.double()).sum(-1), idx, m, size).to(x.dtype)

    def segmented_mul(x, y, idx, m):
        return (x.double() * _BrokenBroadcast.apply(y.double(), idx, size)[:, None]).to(x.dtype)

    return segmented_sum, segmented_dot, segmented_mul


@pytest.mark.parametrize("size", [lambda: 64, lambda: 4096 // torch.get_num_threads()], ids=["places", "threads"])
@pytest.mark.parametrize("which", range(3), ids=["sum", "dot", "mul"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broken_rule_is_noticed(dtype, which, size, threads, monkeypatch):
    """Blocks counted from the start of the data, or shares of the threads, put in the place of the ops."""
    function = _broken(size)[which]
    case = Case(next(o for o in OPS if o.name == function.__name__), (3,), dtype, torch.int32)
    monkeypatch.setattr(segment_ops, function.__name__, function)
    alone.cache_clear()
    threads(2)
    try:
        with pytest.raises(pytest.fail.Exception, match="result"):
            check(case, [(17, 1), (129, 0), (4097, 0)])
    finally:
        alone.cache_clear()
