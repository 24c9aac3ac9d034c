# SPDX-License-Identifier: Apache-2.0
"""What is allocated: no more at the peak than by torch's own operations, and nothing for a gradient that is not needed.

torch's profiler reports every allocation of its CPU allocator; the engine allocates nothing by itself. While it
records, calls go through the dispatcher; to measure the fast route, too, that is kept from noticing.
"""

import contextlib
import itertools
import os
import sys

import pytest
import torch
from native.process import python
from oracles import OPS
from pages import needs_linux
from torch_battery import Case, every_op, random_cotangents

from segmentops.torch import _fast

M = 10_000


def never():
    return False


class Allocations(contextlib.AbstractContextManager):
    """Sizes of allocations (positive) and releases (negative), in order."""

    def __init__(self, fast=True):
        self.fast = fast
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self):
        self.question = _fast._world().profiling
        if self.fast:
            _fast._world().profiling = id(never)
        self.profile.__enter__()
        return self

    def __exit__(self, *error):
        self.profile.__exit__(*error)
        _fast._world().profiling = self.question
        events = [e for e in self.profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        self.sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]

    @property
    def peak(self):
        return max(itertools.accumulate(self.sizes))

    def larger_than(self, size):
        return [s for s in self.sizes if s >= size]


def case_of(op):
    return Case(op, (3, 3) if op.matrices else (3,), torch.float32, torch.int32)


def index(n, m):
    g = torch.Generator().manual_seed(0)
    return torch.sort(torch.randint(0, m, (n,), generator=g, dtype=torch.int32)).values


def to_second_order(function, inputs, cotangents):
    """Value, gradients and the gradients of those, all kept."""
    leaves = [a.detach().requires_grad_() for a in inputs]
    found = [function(*leaves)]
    for order in cotangents:
        pairs = [(y, c) for y, c in zip(found, order, strict=False) if y.requires_grad]
        if pairs:
            outs, weights = zip(*pairs, strict=True)
            graph = order is cotangents[0]
            found = list(torch.autograd.grad(outs, leaves, weights, create_graph=graph, allow_unused=True))
    return found


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.short)
def test_peak_is_no_higher_than_that_of_torch(op):
    n = 1_000_000
    case, idx = case_of(op), index(n, M)
    inputs, cotangents = case.inputs(n, M), random_cotangents(case, n, M, 2)
    to_second_order(lambda *a: case(*a, idx, M), inputs, cotangents)  # looks at idx, builds the engine
    peaks = {}
    for name, function, fast in (("fast", case, True), ("dispatcher", case, False), ("torch", case.composed, True)):
        with Allocations(fast) as seen:
            to_second_order(lambda *a, f=function: f(*a, idx, M), inputs, cotangents)
        peaks[name] = seen.peak
    size = inputs[0].nbytes
    assert peaks["torch"] >= size, "nothing was measured"
    assert peaks["fast"] <= peaks["torch"] and peaks["dispatcher"] <= peaks["torch"], peaks


N = 100_000


def choices(count):
    return [c for c in itertools.product([False, True], repeat=count) if any(c)]


@every_op
def test_no_buffer_for_a_gradient_that_is_not_needed(case):
    """The arrays of elements that the first and the second backward allocate are those that they return."""
    case, m = case_of(case.op), 7
    idx, inputs, w = index(N, m), case.inputs(N, m), case.weights(N, m)
    kinds = [a.kind for a in case.op.args]
    case(*inputs, idx, m)
    for needs, fast in itertools.product(choices(len(inputs)), (True, False)):
        leaves = [a.detach().requires_grad_(need) for a, need in zip(inputs, needs, strict=True)]
        wanted = [a for a, need in zip(leaves, needs, strict=True) if need]
        with Allocations(fast) as forward:
            out = case(*leaves, idx, m)
        assert len(forward.larger_than(4 * N)) == (not case.op.reduces)
        with Allocations(fast) as backward:
            grads = torch.autograd.grad(out, wanted, w, create_graph=True)
        elements = sum(need and kind == "element" for need, kind in zip(needs, kinds, strict=True))
        assert len(backward.larger_than(4 * N)) == elements, (needs, backward.sizes)
        for grad in grads:
            if grad.requires_grad:
                v = torch.ones_like(grad)
                with Allocations(fast) as second:
                    found = torch.autograd.grad(grad, wanted, v, retain_graph=True, allow_unused=True)
                expected = sum(g is not None and len(g) == N for g in found)
                assert len(second.larger_than(4 * N)) == expected, (needs, second.sizes)


@every_op
def test_what_is_kept_for_the_backward(case):
    """idx, and of the arrays only those that a wanted gradient is made of."""
    case, m = case_of(case.op), 7
    idx, inputs = index(100, m), case.inputs(100, m)
    for needs in choices(len(inputs)):
        leaves = [a.detach().requires_grad_(need) for a, need in zip(inputs, needs, strict=True)]
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: (kept.append(t), t)[1], lambda t: t):
            case(*leaves, idx, m)
        known = {id(a): k for k, a in enumerate(leaves)} | {id(idx): "idx"}
        found = {known.get(id(t), "by-product") for t in kept}
        if case.op.linear:  # the gradient of one is made of the others
            expected = {k for i, need in enumerate(needs) if need for k in range(len(needs)) if k != i} | {"idx"}
        else:
            expected = {"idx", "by-product"} | ({0} if case.op.kink else set())
        assert found == expected and len(kept) == len(found), (needs, found)


@needs_linux
def test_large_results_and_gradients_prefer_large_pages():
    """Fresh memory costs less in them. In a process of its own: NumPy prefers them, too, where it has been."""
    lines = python("""
    import contextlib, itertools
    import torch
    from pages import LARGE, prefers_large
    from segmentops.torch.segment_ops import segmented_mul, segmented_sum
    def arrays(n, dtype):
        idx, y = torch.zeros(n, dtype=torch.int32), torch.ones(1, dtype=dtype)
        x = torch.ones(n, 64, dtype=dtype, requires_grad=True)
        (gradient,) = torch.autograd.grad(segmented_sum(x, idx, 1), x, torch.ones(1, 64, dtype=dtype))
        return segmented_mul(x, y, idx, 1), gradient, x
    for dtype, fast in itertools.product((torch.float32, torch.float64, torch.bfloat16), (True, False)):
        arrays(1, dtype)  # the first call finds the engine
        with contextlib.nullcontext() if fast else torch.profiler.profile():
            found = arrays(LARGE // 64 // dtype.itemsize, dtype)
        print([prefers_large(t.data_ptr() + LARGE // 2) for t in found])
    """, PYTHONPATH=os.pathsep.join(sys.path))  # fmt: skip
    assert lines == ["[True, True, False]"] * 6
