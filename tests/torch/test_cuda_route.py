# SPDX-License-Identifier: Apache-2.0
"""What runs on CUDA tensors, seen on CPU tensors: no GPU is needed (`test_on_gpu.py` needs one).

The very function of the dispatcher's CUDA key runs Warp's kernels, serial ones or the thread blocks of CUDA as fibers,
and must give the engine's bits.
"""

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
import warp as wp
from oracles import positions
from torch_battery import DTYPES, INDEX_DTYPES, make_index, same_bits

from segmentops.kernels import _packed, launch
from segmentops.ops.table import OPERATIONS
from segmentops.torch import _cuda, _index, _kernels, _substitute, set_index_check

every_operation = pytest.mark.parametrize("name", OPERATIONS)

HALF = (torch.float16, torch.bfloat16)
LENGTHS = {
    "mixed": (0, 7, 8, 9, 0, 1, 64, 65, 3, 200, 0),
    "long": (3, 5000, 1),
    "ones": (1,) * 300,
    "no elements": (0, 0, 0),
}
# what k and j stand for
EXTENTS = {
    "scalars": ((), ()),
    "vectors": ((3,), (3,)),
    "wide": ((2, 5), ()),
    "rectangle": ((2,), (4,)),
    "none": ((0,), (2,)),
}


@pytest.fixture
def fibers(monkeypatch):
    monkeypatch.setattr(launch, "cooperative_on_cpu", True)
    monkeypatch.setattr(wp.config, "enable_cpu_blocks", True)


@pytest.fixture
def route(request, monkeypatch):
    if request.param == "fibers":
        request.getfixturevalue("fibers")


both = pytest.mark.parametrize("route", ["kernels", "fibers"], indirect=True)


def operands(name, n, m, extent, dtype, idx, seed=0):
    """Random operands of magnitudes that make the order of additions visible; by-products that fit them."""
    op = OPERATIONS[name]
    g = torch.Generator().manual_seed(seed)
    dims = {"n": (n,), "m": (m,), "k": extent[0], "j": extent[1]}
    found = {}
    for operand in op.operands:
        shape = [d for letter in (operand.lead, *operand.trail) for d in dims[letter]]
        size = 10.0 ** torch.randint(-4, 2 if dtype in HALF else 5, shape, generator=g, dtype=torch.float64)
        found[operand.name] = (torch.randn(shape, generator=g, dtype=torch.float64) * size).to(dtype)
        if operand.dtype:
            found[operand.name] = torch.from_numpy(positions(idx.numpy(), m, shape[1:], seed))
    if "inv" in found:
        found["inv"] = _kernels.KERNELS["rms_norm"](found["x"], idx, m)[1]
    return list(found.values())


def as_tuple(outs):
    return outs if isinstance(outs, tuple) else (outs,)


def identical(a, b):
    """The same dtypes, shapes and bits."""
    for x, y in zip(as_tuple(a), as_tuple(b), strict=True):
        if x.element_size() == 2 and x.dtype == y.dtype:
            x, y = x.view(torch.int16), y.view(torch.int16)
        if not (same_bits(x, y) if x.is_floating_point() else x.dtype == y.dtype and torch.equal(x, y)):
            return False
    return True


def extents(name):
    """Trailing shapes that an operation takes."""
    matrices = OPERATIONS[name].matrices
    return [e for label, e in EXTENTS.items() if not matrices or label in ("vectors", "rectangle", "none")]


@both
@every_operation
@pytest.mark.parametrize("dtype", DTYPES + HALF)
def test_bits_of_the_engine(name, dtype, route):
    run = _cuda.kernel(name)
    for lengths in LENGTHS.values() if dtype in DTYPES else [LENGTHS["mixed"]]:
        for k, extent in enumerate(extents(name)):
            idx = make_index(lengths, INDEX_DTYPES[k % 2])
            arrays = operands(name, len(idx), len(lengths), extent, dtype, idx)
            expected = _kernels.KERNELS[name](*arrays, idx, len(lengths))
            assert identical(run(*arrays, idx, len(lengths)), expected), (lengths, extent)


@both
@pytest.mark.parametrize("dtype", DTYPES + HALF)
@pytest.mark.parametrize("width", (4, 9, 70, 200, 4200))
def test_bits_of_wide_rows(width, dtype, route):
    """A row's squares are added as a segment's are: by lanes, blocks and supers."""
    idx = make_index((2, 0, 3, 1))
    for name in ("max_norm", "max_norm_backward"):
        arrays = operands(name, len(idx), 4, ((width,), ()), dtype, idx)
        expected = _kernels.KERNELS[name](*arrays, idx, 4)
        assert identical(_cuda.kernel(name)(*arrays, idx, 4), expected), name


@pytest.mark.parametrize("name", ("broadcast", "mul", "sum"))
def test_more_rows_than_the_kernels_can_take(name):
    """Nothing of so much memory is touched."""
    n = 2**31
    x, y, idx = torch.zeros(1, 1).expand(n, 1), torch.zeros(1), torch.zeros(1, dtype=torch.int32).expand(n)
    arguments = {"broadcast": (y,), "mul": (x, y), "sum": (x,)}[name]
    with pytest.raises(ValueError, match="limited to|at most") as caught:
        _cuda.kernel(name)(*arguments, idx, 1)
    assert str(n) in str(caught.value)


@every_operation
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_both_widths_of_idx_and_padding(name, index_dtype):
    far = 2**40 if index_dtype is torch.int64 else 2**30
    idx = torch.cat([torch.tensor([-far, -1]), make_index((4, 0, 70)), torch.tensor([3, far])]).to(index_dtype)
    arrays = operands(name, len(idx), 3, ((3,), (3,)), torch.float32, idx)
    expected = _kernels.KERNELS[name](*arrays, idx, 3)
    assert identical(_cuda.kernel(name)(*arrays, idx, 3), expected)


def spaced(a):
    """Every other one of all dimensions."""
    wide = a.new_full([2 * d for d in a.shape], 7)
    return wide[tuple(slice(1, None, 2) for _ in a.shape)].copy_(a)


@every_operation
def test_strides_are_followed(name, monkeypatch):
    """Transposed, strided and expanded operands, idx too, without a copy."""
    idx = make_index((4, 0, 70, 9))
    n, m = len(idx), 4
    arrays = operands(name, n, m, ((3,), (3,)), torch.float64, idx)
    expected = _kernels.KERNELS[name](*arrays, idx, m)
    strided = [spaced(a) for a in arrays]
    index = torch.stack([idx, idx + 100], 1)[:, 0]
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous", lambda *_: pytest.fail("copied"))
        found = _cuda.kernel(name)(*strided, index, m)
    assert identical(found, expected)
    if any(o.lead == "n" and not o.dtype for o in OPERATIONS[name].operands):
        places = [o.lead for o in OPERATIONS[name].operands]
        same = [a[:1].expand_as(a) if lead == "n" else a for a, lead in zip(arrays, places, strict=True)]
        full = [a.clone(memory_format=torch.contiguous_format) for a in same]
        run = _cuda.kernel(name)
        assert identical(run(*same, idx, m), run(*full, idx, m))


def test_nothing_but_torch_allocates(monkeypatch):
    """Memory that Warp took would be unknown to the pool of a CUDA graph."""
    idx = make_index((3, 5000, 1))
    for name in OPERATIONS:
        arrays = operands(name, len(idx), 3, ((3,), (3,)), torch.float32, idx)
        run = _cuda.kernel(name)
        run(*arrays, idx, 3)
        with monkeypatch.context() as patch:
            allocator = wp.get_device("cpu").get_allocator()
            patch.setattr(allocator, "allocate", lambda *_, **__: pytest.fail("Warp allocated"))
            run(*arrays, idx, 3)


def test_threads_share_no_arguments():
    """Prepared launches are used by many threads at once."""
    idx = make_index((40, 1, 9, 100))
    run = _cuda.kernel("mul_backward")
    cases = [operands("mul_backward", 150, 4, ((3,), ()), torch.float32, idx, seed) for seed in range(8)]
    expected = [run(*c, idx, 4) for c in cases]
    wrong = []

    def work(case, result):
        wrong.extend(k for k in range(40) if not identical(run(*case, idx, 4), result))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, expected, strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_prepared_launches_are_those_of_warp(monkeypatch):
    """Where Warp's private functions are missing, wp.launch gives the same."""
    idx = make_index((40, 1, 9, 100))
    launched = []
    warp_launch = wp.launch
    monkeypatch.setattr(wp, "launch", lambda *a, **k: (launched.append(a), warp_launch(*a, **k)))
    for name in OPERATIONS:
        arrays = operands(name, 150, 4, ((3,), (3,)), torch.float32, idx)
        run = _cuda.kernel(name)
        launched.clear()
        prepared = run(*arrays, idx, 4)
        assert not launched
        with monkeypatch.context() as patch:
            patch.setattr(_packed, "_supported", lambda: False)
            assert identical(run(*arrays, idx, 4), prepared)
        assert launched
    assert _packed.supported()
    for name in ("_context", "_types"):
        with monkeypatch.context() as patch:
            patch.setattr(_packed, name, None)
            assert not _packed.supported()


# ------------------------------------------------------------------ idx on a device: the look by torch's operations
def test_look_by_torch(monkeypatch):
    """What a CUDA idx is looked at with says what the engine says."""
    for values in ([0], [0, 0, 3], [3, 2], [-1, 0], [0, 4], [2, 1, 9], [5], [0, 1, 1, 3]):
        for dtype in INDEX_DTYPES:
            idx = torch.tensor(values, dtype=dtype)
            in_order, first, last = _index._ends(idx)
            assert _index._valid(idx, 4)[0] == (in_order and first >= 0 and last < 4)
            assert last == values[-1]


def test_one_synchronisation_a_new_idx(monkeypatch):
    waits = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: (waits.append(t), tolist(t))[1])
    monkeypatch.setattr(_index, "_valid", lambda *_: (_ for _ in ()).throw(_index.native.NativeBuildError("none")))
    idx = make_index((300, 700))
    with set_index_check("cached"):
        for _ in range(3):
            _index.check("op", idx, 2)
        assert len(waits) == 1
        idx[0] = 0  # a change that torch knows of
        _index.check("op", idx, 2)
        assert len(waits) == 2
        with pytest.raises(ValueError, match="sorted"):
            _index.check("op", idx.flip(0), 2)


# ------------------------------------------------------------------ no engine
@every_operation
def test_substitute_is_called_like_the_engine(name, monkeypatch):
    idx = make_index((4, 0, 70, 9))
    for dtype in DTYPES + HALF:
        for index in (idx, idx.long()):
            arrays = operands(name, len(idx), 4, ((3,), (3,)), dtype, index)
            expected = _kernels.KERNELS[name](*arrays, index, 4)
            with monkeypatch.context() as patch:
                patch.setitem(_kernels.FUNCTIONS[name], dtype, _substitute.function(name, dtype))
                for inputs in (arrays, [spaced(a) for a in arrays]):
                    assert identical(_kernels.call(name, *inputs, index, 4), expected)
                with pytest.raises(ValueError, match="sorted"):
                    _kernels.call(name, *arrays, index.flip(0), 4, 2)


WITHOUT_ENGINE = """
    import warnings
    import torch, warp as wp
    wp.config.log_level = 30
    del wp.ModuleBuildOptions                     # a Warp that cannot build the engine
    from segmentops.torch.segment_ops import segmented_max_norm, segmented_mul, segmented_rms_norm, segmented_sum
    n = 1000
    x = torch.arange(3.0 * n, dtype=torch.float64).reshape(n, 3).requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        idx = torch.arange(n) // 100
        out = segmented_sum(x, idx, 10)
        segmented_mul(x, out[:, 0], idx, 10)
        value = segmented_rms_norm(x, idx, 10) + segmented_max_norm(x, idx, 10)
        (g,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * x.detach()).sum(), x)
    said = [w for w in caught if "segmentops" in str(w.message)]
    assert len(said) == 1 and "ModuleBuildOptions" in str(said[0].message), [str(w.message) for w in caught]
    torch.testing.assert_close(out, x.reshape(10, 100, 3).sum(1))
    a = x.detach().clone().requires_grad_()
    norms = a.reshape(10, 100, 3).norm(dim=2)
    expected = norms.square().mean(1).sqrt() + norms.amax(1)
    (e,) = torch.autograd.grad(expected.sum(), a, create_graph=True)
    (f,) = torch.autograd.grad((e * a.detach()).sum(), a)
    torch.testing.assert_close(g, e)
    torch.testing.assert_close(h, f)
    for bad in (idx.flip(0), idx - 1, idx + 1):
        try:
            segmented_sum(x, bad, 10)
        except ValueError:
            continue
        raise AssertionError("not checked")
    for bad in (idx[:300].flip(0), idx[:300] - 1):
        try:
            segmented_sum(x[:300], bad, 10)
        except ValueError:
            continue
        raise AssertionError("not checked")
"""


def test_without_the_engine_warns_once_and_is_right():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(WITHOUT_ENGINE)], check=True, env=environment)


def test_a_driver_that_warp_cannot_use(monkeypatch):
    """torch runs on older drivers than Warp, whose list of devices is empty then: the error says what is needed."""
    monkeypatch.setattr(wp._src.context.runtime, "cuda_devices", [])
    with pytest.raises(RuntimeError, match="no device for tensors on cuda:0.*driver for CUDA 13"):
        _cuda._warp_device.__wrapped__(torch.device("cuda", 0))
