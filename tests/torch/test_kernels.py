# SPDX-License-Identifier: Apache-2.0
"""The native call of `plain_call.h`: it is taken, agrees with the engine's signatures, and owns what it should."""

import ctypes
import gc
import sys
import weakref

import pytest
import torch
from torch_battery import same_bits

from segmentops.ops import abi
from segmentops.ops.table import OPERATIONS, PUBLIC
from segmentops.torch import _arguments, _fast, _kernels, segment_ops, set_index_check

SIGNATURES = {name: abi.arguments(name) for name in OPERATIONS}
N, M = 9, 4

every_function = pytest.mark.parametrize("name", PUBLIC)


def arguments(name, n=N, dtype=torch.float32, requires_grad=False):
    x = torch.randn(n, 3, dtype=dtype)
    second = {"dot": (n, 3), "mul": (M,), "matvec": (M, 3, 2)}.get(name)
    tensors = [x] if second is None else [x, torch.randn(second, dtype=dtype)]
    return [t.requires_grad_(requires_grad) for t in tensors]


def index(n=N, dtype=torch.int32):
    return torch.sort(torch.arange(n) % M).values.to(dtype)


@pytest.mark.parametrize("name", OPERATIONS)
def test_call_has_the_engines_arguments(name):
    operation = _fast._operation(name)
    given = operation.operands + 1 + operation.outputs + (5 if operation.matrices else 4)
    assert given == len(SIGNATURES[name])
    assert SIGNATURES[name].index("idx") == operation.operands


@pytest.fixture(params=["exchange", "attributes"])
def reading(request, monkeypatch):
    """Tensors are read through DLPack's exchange interface, or attribute by attribute."""
    world = _fast._world()
    if request.param == "attributes":
        monkeypatch.setattr(world, "exchange", None)
    elif not world.exchange:
        pytest.skip("this torch has no exchange interface")


@pytest.fixture
def no_general(monkeypatch):
    """The general route raises."""

    def fail(*args):
        raise AssertionError("the general route")

    return lambda: monkeypatch.setattr(_arguments, "check", fail)


@every_function
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("n", (N, 2000))
def test_plain_calls_are_native(name, dtype, n, reading, no_general):
    function = getattr(segment_ops, f"segmented_{name}")
    tensors = arguments(name, n, dtype, requires_grad=True)
    idx = index(n, torch.int64)
    function(*tensors, idx, M)  # finds the engine's function and remembers idx
    no_general()
    with torch.no_grad():
        expected = _kernels.call(name, *tensors, idx, M)
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert same_bits(function(*tensors, idx, M), expected)
    out = function(*tensors, idx, M)
    assert same_bits(out.detach(), expected)
    assert out.grad_fn is not None
    assert function(*[t.detach() for t in tensors], idx=idx, num_segments=M).grad_fn is None


@every_function
def test_strides_and_trailing_shapes(name, reading, no_general):
    function = getattr(segment_ops, f"segmented_{name}")
    tensors, idx = arguments(name), index()
    function(*tensors, idx, M)
    no_general()
    expected = function(*tensors, idx, M)
    views = [torch.stack([t, t], -1)[..., 1] for t in tensors]
    assert not any(v.is_contiguous() for v in views)
    apart = torch.stack([idx, idx], -1)[:, 0]
    assert same_bits(function(*views, apart, M), expected)
    general = _kernels.call(name, *views, apart, M)
    assert same_bits(general[0] if isinstance(general, tuple) else general, expected)
    if name != "matvec":
        deep = [t.reshape(N, 1, 3, 1) if t.dim() == 2 else t for t in tensors]
        assert same_bits(function(*deep, idx, M).reshape(expected.shape), expected)


@every_function
@pytest.mark.parametrize("n", (N, 2000))
def test_a_bad_idx_is_an_error(name, n, reading):
    function = getattr(segment_ops, f"segmented_{name}")
    for requires_grad in (False, True):
        tensors = arguments(name, n, requires_grad=requires_grad)
        function(*tensors, index(n), M)
        with pytest.raises(ValueError, match="sorted"):
            function(*tensors, index(n).flip(0), M)
        with pytest.raises(ValueError, match="range"):
            function(*tensors, index(n) + 1, M)
        with set_index_check("off"):
            assert bool(torch.isfinite(function(*tensors, index(n) + 1, M)).all())


@every_function
def test_nothing_leaks(name, reading):
    function = getattr(segment_ops, f"segmented_{name}")
    tensors, idx, m = arguments(name, requires_grad=True), index(), M
    wrong = idx.flip(0)

    def step():
        out = function(*tensors, idx, m)
        torch.autograd.grad(out.sum(), tensors)
        function(*[t.detach()[..., :2] if name in ("sum", "mean") else t.detach() for t in tensors], idx, m)
        with pytest.raises(ValueError):
            function(*tensors, wrong, m)
        return weakref.ref(out)

    def owners():
        gc.collect()
        return [sys.getrefcount(o) for o in (*tensors, idx, wrong, torch.float32, function, None)][:-1]

    for _ in range(3):
        step()
    before = owners()
    dead = [step() for _ in range(50)]
    after = owners()
    assert all(a - b < 5 for a, b in zip(after, before, strict=True))
    assert all(ref() is None for ref in dead)


def test_an_error_inside_is_not_swallowed(reading):
    """Neither one of an allocation nor one of a hook."""
    idx, x = index(), arguments("sum")[0]
    segment_ops.segmented_sum(x, idx, M)
    with pytest.raises((RuntimeError, MemoryError)):
        segment_ops.segmented_sum(x, idx, 1 << 46)

    class Stop(Exception):
        pass

    def pack(tensor):
        raise Stop

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), pytest.raises(Stop):
        segment_ops.segmented_sum(x.requires_grad_(), idx, M)


def test_what_is_not_plain_goes_the_general_way(reading):
    idx, x = index(), arguments("sum")[0]
    expected = segment_ops.segmented_sum(x, idx, M)
    negative = torch._neg_view(-x)
    assert same_bits(segment_ops.segmented_sum(negative, idx, M), expected)
    assert same_bits(segment_ops.segmented_sum(x, torch._neg_view(-idx), M), expected)
    assert segment_ops.segmented_sum(x.to("meta"), idx.to("meta"), M).is_meta
    assert segment_ops.segmented_sum(x[:0], idx[:0], M).shape == (M, 3)
    assert segment_ops.segmented_sum(x[:, :0], idx, M).shape == (M, 0)
    with pytest.raises(TypeError, match="num_segments"):
        segment_ops.segmented_sum(x, idx, True)
    with pytest.raises(ValueError, match="x must"):
        segment_ops.segmented_sum(x.to_sparse(), idx, M)
    kept = []
    torch.func.grad(lambda z: (kept.append(z), z.sum())[1])(x)
    assert same_bits(segment_ops.segmented_sum(kept[0], idx, M), expected)  # a wrapper whose level has ended


@every_function
def test_a_profiler_shows_the_operation(name):
    tensors, idx = arguments(name, requires_grad=True), index()
    function = getattr(segment_ops, f"segmented_{name}")
    function(*tensors, idx, M)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.no_grad():
            function(*tensors, idx, M)
        function(*tensors, idx, M).sum().backward()
    counts = {e.key: e.count for e in profile.key_averages()}
    assert counts[f"segmentops::segmented_{name}"] >= 2
    assert any("Backward" in key and "Segmented" in key for key in counts)


def test_an_interrupted_first_compile_is_tried_again(monkeypatch):
    """The slow route is for a build that failed, which is said, and for nothing else."""
    engine, calls = _fast.native.load(), []
    address = engine.address

    def interrupted(name):
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return address(name)

    monkeypatch.setitem(engine.__dict__, "address", interrupted)
    kernel = _fast.kernel("sum", general=lambda *args: pytest.fail("the general route"))
    x = torch.ones(N, 3)
    _kernels.KERNELS["sum"](x, index(), M)  # finds the engine's function
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        kernel(x, index(), M)
    assert same_bits(kernel(x, index(), M), _kernels.KERNELS["sum"](x, index(), M))
    assert calls == ["plain", "plain"]


STRUCTURES = ["_World", "_Array", "_Operation", "_Route", "_Plan", "_Function"]


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_that_was_edited_on_one_side_alone_is_noticed(name, monkeypatch):
    """A warning says which fields are not where `plain_call.h` has them, and calls go through Python."""
    structure = getattr(_fast, name)
    (first, *a), (second, *b), *rest = structure._fields_
    edited = {"in another order": [(second, *a), (first, *b), *rest], "one field less": structure._fields_[:-1]}
    for fields in edited.values():
        other = type(name, (ctypes.Structure,), {"_fields_": fields})
        monkeypatch.setattr(_fast, name, other)
        _fast._fits.cache_clear()
        try:
            kernel = _fast.kernel("sum", general=lambda *args: "general")
            with pytest.warns(UserWarning, match=f"in Python, which is slower: .*{name[1:]}") as warned:
                assert [kernel(torch.ones(N, 3), index(), M) for _ in range(2)] == ["general"] * 2
            assert len(warned) == 1
        finally:
            _fast._fits.cache_clear()
