# SPDX-License-Identifier: Apache-2.0
"""When the values of idx are looked at: the cached verdict, what ends it, the setting, and safety without it.

Looking at a short idx costs less than remembering it, so what shows that a verdict is remembered is a long one.
Writes that torch cannot see are made through NumPy views.
"""

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from torch_battery import assert_within, derivatives, every_op, over, random_cotangents, same_bits, slots

import segmentops.torch as nt
from segmentops.torch.segment_ops import segmented_mul, segmented_sum

LONG = 200_000
BOTH = pytest.mark.parametrize("n", [40, LONG])


@pytest.fixture(autouse=True)
def cached():
    """Every test starts with the default setting and leaves it behind."""
    with nt.set_index_check("cached"):
        yield


def index(n, m=4, dtype=torch.int32):
    return torch.arange(n).mul(m).div(n, rounding_mode="floor").to(dtype)


def call(idx, m=4):
    return segmented_sum(torch.ones(idx.numel()), idx, m)


def raises(idx, m=4, match="idx"):
    with pytest.raises(ValueError, match=match):
        call(idx, m)


# ------------------------------------------------------------------ what ends a verdict
def _in_place(idx):
    idx[0] = 3


def _fill(idx):
    idx[:2].fill_(3)


def _view(idx):
    idx[: idx.numel() // 2].add_(2)


def _detached(idx):
    idx.detach()[0] = 3


def _reshaped(idx):
    idx.view(2, -1)[0, 0] = 3


def _out(idx):
    torch.add(idx, torch.flip(idx, (0,)) * 2, out=idx)


def _copy(idx):
    idx.copy_(idx.flip(0))


def _foreach(idx):
    torch._foreach_mul_([idx], -1)


def _inference(idx):
    with torch.inference_mode():
        idx[0] = 3


def _no_grad(idx):
    with torch.no_grad():
        idx[0] = 3


def _data(idx):
    idx.data = idx.flip(0)


def _set(idx):
    idx.set_(idx.flip(0))


def _scatter(idx):
    idx.scatter_(0, torch.tensor([0]), 3)


def _alias(idx):
    torch.as_tensor(idx)[0] = 3


EDITS = [_in_place, _fill, _view, _detached, _reshaped, _out, _copy, _foreach, _inference, _no_grad, _data, _set,
         _scatter, _alias]  # fmt: skip


@BOTH
@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_an_edited_index_is_looked_at_again(n, edit, dtype):
    idx = index(n, dtype=dtype)
    for _ in range(3):
        call(idx)
    edit(idx)
    raises(idx)
    raises(idx)


@BOTH
def test_an_edit_that_leaves_it_valid(n):
    idx = index(n)
    before = call(idx)
    idx[n // 2] = idx[n // 2 - 1]
    assert call(idx)[1] == before[1] + 1
    idx.zero_()
    assert call(idx).tolist() == [n, 0, 0, 0]
    idx.add_(1)
    assert call(idx).tolist() == [0, n, 0, 0]
    raises(idx, 1, "range")


@BOTH
def test_every_num_segments(n):
    """One verdict answers for every number of segments."""
    idx = index(n)
    assert call(idx, 4).numel() == 4 and call(idx, 9).numel() == 9
    raises(idx, 3, "range")
    raises(idx, 1, "range")
    raises(idx, 0)
    assert call(idx, 4).sum() == n


@BOTH
def test_a_bad_index_is_bad_every_time(n):
    idx = index(n).flip(0).contiguous()
    for _ in range(3):
        raises(idx, match="sorted")
    idx.copy_(index(n))
    call(idx)


# ------------------------------------------------------------------ writes that torch does not see
def hidden_write(idx, position=0, value=3):
    version = idx._version
    idx.numpy()[position] = value
    assert idx._version == version


def test_the_verdict_is_remembered():
    idx = index(LONG)
    call(idx)
    hidden_write(idx)
    call(idx)  # in range, unsorted: unspecified values, and nothing worse
    nt.invalidate(idx)
    raises(idx, match="sorted")
    raises(idx, match="sorted")


@BOTH
def test_invalidate(n):
    idx = index(n)
    call(idx)
    hidden_write(idx, n - 1, 77)
    nt.invalidate(idx)
    raises(idx, match="range")
    hidden_write(idx, n - 1, 3)
    nt.invalidate(idx)
    call(idx)
    nt.invalidate(index(n))  # never seen: nothing to forget


def test_invalidate_of_no_tensor():
    for thing in (None, [0, 1], np.zeros(3, np.int32)):
        with pytest.raises(TypeError, match="invalidate.*idx.*Tensor"):
            nt.invalidate(thing)


def test_views_have_their_own_verdict():
    idx = index(LONG)
    call(idx)
    view = idx[1000:]
    call(view)
    idx[1001] = 3
    raises(view, match="sorted")
    raises(idx, match="sorted")
    assert call(idx[2000:]).sum() == LONG - 2000


# ------------------------------------------------------------------ the setting
@BOTH
def test_always(n):
    idx = index(n)
    call(idx)
    hidden_write(idx)
    with nt.set_index_check("always"):
        raises(idx, match="sorted")
        good = index(n)
        assert call(good).sum() == n
        hidden_write(good, n - 1, 4)
        raises(good, match="range")


@BOTH
def test_off(n):
    with nt.set_index_check("off"):
        idx = index(n)
        idx[0] = -1
        idx[-1] = 4
        assert call(idx).sum() == n - 2
        idx = index(n).flip(0).contiguous()
        assert call(idx).shape == (4,)
    raises(idx, match="sorted")


@BOTH
def test_what_passed_unseen_is_not_remembered(n):
    idx = index(n)
    idx[0] = 3
    with nt.set_index_check("off"):
        call(idx)
    raises(idx, match="sorted")
    good = index(n)
    with nt.set_index_check("always"):
        call(good)
    hidden_write(good)
    nt.invalidate(good)
    raises(good, match="sorted")


def test_the_setting_nests_and_comes_back():
    bad = index(10).flip(0)
    with nt.set_index_check("off"):
        call(bad)
        with nt.set_index_check("cached"):
            raises(bad)
        call(bad)
        with pytest.raises(KeyError), nt.set_index_check("always"):
            raise KeyError
        call(bad)
    raises(bad)


def test_one_setting_is_entered_twice():
    """One after the other, and inside itself."""
    bad = index(10).flip(0)
    off = nt.set_index_check("off")
    for _ in range(2):
        with off:
            call(bad)
        raises(bad)
    with nt.set_index_check("always"):
        with off:
            call(bad)
            with nt.set_index_check("always"), off, off:
                call(bad)
            call(bad)
        raises(bad)
    raises(bad)


def test_the_setting_as_a_call():
    bad = index(10).flip(0)
    try:
        nt.set_index_check("off")
        call(bad)
        nt.set_index_check("always")
        raises(bad)
    finally:
        nt.set_index_check("cached")
    raises(bad)


def test_the_setting_of_another_name():
    for name in ("never", "", None, True, 1, "Cached"):
        with pytest.raises((ValueError, TypeError), match="cached"):
            nt.set_index_check(name)
    raises(index(10).flip(0))


# ------------------------------------------------------------------ entries die with their tensor
def test_the_index_is_not_kept_alive():
    idx = index(LONG)
    storage = weakref.ref(idx.untyped_storage())
    call(idx)
    seen = weakref.ref(idx)
    del idx
    gc.collect()
    assert seen() is None and storage() is None


def test_a_tensor_at_the_old_address():
    """CPython gives the identity of a dead tensor to the next one, and the allocator its memory."""
    same, source = 0, index(LONG)
    for _ in range(100):
        good = source.clone()
        call(good)
        old = id(good)
        del good
        bad = source.clone()
        bad.data[0] = 3  # the version counter does not know
        same += id(bad) == old
        raises(bad, match="sorted")
        del bad
    assert same > 0, "no identity came back: this test shows nothing"


def test_a_dead_entry_does_not_take_a_new_one_with_it():
    """Two tensors and a reference cycle: the first dies after the second has taken its place."""
    for _ in range(3):
        idx = index(LONG)
        idx.cycle = [idx]
        call(idx)
        del idx
        fresh = index(LONG)
        call(fresh)
        gc.collect()
        call(fresh)
        fresh[0] = 3
        raises(fresh, match="sorted")


def test_nothing_is_left_behind():
    """A thousand tensors, a thousand verdicts, no growth."""
    from segmentops.torch import _index

    gc.collect()
    tables = [v for v in vars(_index).values() if isinstance(v, dict) and v is not vars(_index)]
    before = sum(map(len, tables))
    for _ in range(1000):
        call(index(1000))
    gc.collect()
    assert sum(map(len, tables)) <= before + 1


def test_an_index_that_outlives_the_library():
    """At the end of the process modules go in any order; nothing is printed then."""
    program = """
import torch
from segmentops.torch.segment_ops import segmented_sum
torch.an_index = torch.arange(10000)
segmented_sum(torch.ones(10000), torch.an_index, 10000)
"""
    run = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                         capture_output=True, text=True, check=True)  # fmt: skip
    assert "Exception" not in run.stderr, run.stderr


def test_copies_and_saved_tensors_carry_nothing(tmp_path):
    import copy

    idx = index(LONG)
    call(idx)
    for other in (copy.deepcopy(idx), copy.copy(idx), idx.clone()):
        other.data[0] = 3
        if other is not idx and other.data_ptr() != idx.data_ptr():
            raises(other, match="sorted")
    torch.save(idx, tmp_path / "idx.pt")
    loaded = torch.load(tmp_path / "idx.pt")
    nt.invalidate(idx)
    assert torch.equal(loaded, idx)


# ------------------------------------------------------------------ unusual tensors
@BOTH
def test_inference_tensors(n):
    """They have no version counter: looked at every time."""
    with torch.inference_mode():
        idx = index(n)
        assert call(idx).sum() == n and call(idx).sum() == n
        idx[0] = 3
        raises(idx, match="sorted")
    raises(idx, match="sorted")
    with torch.inference_mode():
        idx[0] = 0
    assert call(idx).sum() == n


@BOTH
def test_index_as_a_buffer_and_as_a_parameter(n):
    module = torch.nn.Module()
    module.register_buffer("idx", index(n))
    call(module.idx)
    module.idx[0] = 3
    raises(module.idx, match="sorted")
    parameter = torch.nn.Parameter(index(n), requires_grad=False)
    call(parameter)
    with torch.no_grad():
        parameter[0] = 3
    raises(parameter, match="sorted")


def test_index_of_a_subclass():
    class Named(torch.Tensor):
        pass

    idx = index(LONG).as_subclass(Named)
    call(idx)
    idx[0] = 3
    raises(idx, match="sorted")


def test_swapped_with_another():
    """torch swaps no tensor that has a weak reference, as the verdict holds one; `invalidate` lets go of it."""
    idx, other = index(LONG), index(LONG).flip(0)
    call(idx)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(idx, other)
    nt.invalidate(idx)
    torch.utils.swap_tensors(idx, other)
    raises(idx, match="sorted")
    call(other)


def test_moved_to_shared_memory():
    idx = index(LONG)
    call(idx)
    idx.share_memory_()
    call(idx)
    idx[0] = 3
    raises(idx, match="sorted")


def test_many_threads():
    """Good and bad indices from eight threads at once; every bad one raises, every good one does not."""
    wrong = []

    def work(seed):
        try:
            for k in range(60):
                good, bad = index(LONG // 20), index(LONG // 20)
                bad[k + 1] = 3
                for _ in range(3):
                    assert call(good).sum() == LONG // 20
                    with pytest.raises(ValueError, match="sorted"):
                        call(bad)
                    good.add_(0)
        except BaseException as error:
            wrong.append((seed, error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]


def test_one_index_in_many_threads():
    idx, wrong = index(LONG), []

    def work():
        try:
            for _ in range(100):
                assert call(idx).sum() == LONG
                nt.invalidate(idx)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]


# ------------------------------------------------------------------ under torch.func
def of_both(x, idx):
    return (segmented_sum(x, idx, 4) ** 2).sum()


TRANSFORMS = {
    "grad": torch.func.grad,
    "hessian": torch.func.hessian,
    "grad_of_grad": lambda f: torch.func.grad(lambda x, idx: torch.func.grad(f)(x, idx).sum()),
    "vjp": lambda f: lambda x, idx: torch.func.vjp(lambda x: f(x, idx), x)[1](torch.tensor(1.0)),
    "jvp": lambda f: lambda x, idx: torch.func.jvp(lambda x: f(x, idx), (x,), (x,)),
    "vmap_of_grad": lambda f: torch.func.vmap(torch.func.grad(f), (0, None)),
}


@BOTH
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_an_index_that_a_transform_wraps(n, dtype, transform):
    """`grad(f)(x, idx)` wraps idx as it wraps x; its values are at hand all the same."""
    if n == LONG and transform is torch.func.hessian:
        n = 600  # beyond what is looked at without remembering
    x = torch.ones(2, n) if transform is TRANSFORMS["vmap_of_grad"] else torch.ones(n)
    idx = index(n, dtype=dtype)
    run = transform(of_both)
    run(x, idx)
    strided = torch.stack([idx, idx.flip(0)], 1)[:, 0]
    run(x, strided)
    strided[0] = 3
    idx[0] = 3
    for bad in (idx, strided):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"sorted.*idx\[1\] = 0"):
                run(x, bad)
    idx[0] = 0
    run(x, idx)
    idx.numpy()[-1] = 4
    nt.invalidate(idx)
    with pytest.raises(ValueError, match="range"):
        run(x, idx)


def test_a_batch_of_indices_is_not_looked_at():
    """Under vmap over idx there is no single idx: padding is padding there, also below grad."""
    indices = torch.tensor([[0, 0, 1], [1, 4, -1]])
    gradient = torch.func.vmap(torch.func.grad(of_both), (None, 0))(torch.ones(3), indices)
    assert gradient.tolist() == [[4.0, 4.0, 2.0], [2.0, 0.0, 0.0]]


@BOTH
def test_an_index_with_a_pending_negation(n):
    """A flag of a view, not memory. torch itself makes them of real numbers only, but for a private function."""
    idx = index(n)
    x = torch.arange(1.0, n + 1)
    for run in (of_both, torch.func.grad(of_both)):
        for _ in range(2):
            assert torch.equal(run(x, torch._neg_view(-idx)), run(x, idx))
    with pytest.raises(ValueError, match="negative"):
        of_both(x, torch._neg_view(idx))


# ------------------------------------------------------------------ where nothing is checked
@over(widths=2)
def test_padding_where_nothing_is_checked(case):
    """Elements out of range belong to no segment, also where their data are NaN; no derivative there."""
    lengths = (2, 0, 3)
    inner = case.index(lengths)
    far = torch.iinfo(case.index_dtype)
    idx = torch.cat([inner.new_tensor([far.min, -1]), inner, inner.new_tensor([3, 3, 9, far.max])])
    real = slice(2, 2 + len(inner))
    n, m = len(idx), 3
    with nt.set_index_check("off"):
        inputs, cotangents = case.inputs(n, m), random_cotangents(case, n, m, 2)
        for a, array in zip(inputs, case.op.args, strict=True):
            if array.kind == "element":
                a[:2], a[real.stop :] = float("nan"), float("nan")
        out = case(*inputs, idx, m)
        assert_within(out, *case.oracle(inputs, idx, m), 5)
        found = derivatives(lambda *a: case(*a, idx, m), inputs, cotangents)

    def rows(tensors, arrays):
        return [t[real] if a.kind == "element" else t for t, a in zip(tensors, arrays, strict=True)]

    first, second = slots(case.op, 2)
    own = rows(inputs, case.op.args), [rows(cotangents[0], first), rows(cotangents[1], second)]
    expected = derivatives(lambda *a: case(*a, inner, m), *own)
    kinds = [[case.op.out], list(case.op.args), [*case.op.args, *first]]
    for tensors, others, arrays in zip(found, expected, kinds, strict=True):
        for t, o, array in zip(tensors, others, arrays, strict=True):
            if array.kind == "element":
                assert (t[:2] == 0).all() and (t[real.stop :] == 0).all()
                t = t[real]
            assert same_bits(t, o)


@every_op
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_garbage_does_not_crash(case, dtype, threads):
    """Any values whatever, unsorted: no access out of bounds, values and derivatives."""
    g = case.generator(9)
    info = torch.iinfo(dtype)
    with nt.set_index_check("off"):
        for n, m in ((1, 1), (13, 4), (1000, 7), (70_000, 100), (70_000, 1)):
            for low, high in ((-2, m + 2), (-(10 * m), 10 * m), (info.min, info.max)):
                idx = torch.randint(low, high, (n,), generator=g, dtype=dtype)
                for count in (1, 3):
                    threads(count)
                    found = derivatives(
                        lambda *a, idx=idx, m=m: case(*a, idx, m),
                        case.inputs(n, m),
                        random_cotangents(case, n, m, 2),
                    )
                    outside = (idx < 0) | (idx >= m)
                    if not case.op.reduces:
                        assert (found[0][0][outside] == 0).all()


def test_fields_around_the_arrays_are_not_written():
    """Outputs are the binding's own; inputs that are views of larger arrays keep what is around them."""
    around = torch.full((1000,), 7.0)
    x = around[10:990]
    idx = torch.from_numpy(np.full(980, 2**31 - 1, dtype=np.int32))
    with nt.set_index_check("off"):
        assert (segmented_sum(x, idx, 3) == 0).all()
        assert (segmented_mul(x, torch.ones(3), idx, 3) == 0).all()
    assert (around == 7).all()


def test_index_changed_between_forward_and_backward(n=5000):
    """Case 6 of the field: a number changed through an alias. Any values; no access out of bounds."""
    for write in (-1, 2**31 - 1, 10_000_000):
        for name, m in (("segmented_sum", 50), ("segmented_mul", 50)):
            idx = index(n, m)
            x = torch.randn(n, requires_grad=True)
            y = torch.randn(m, requires_grad=True)
            out = segmented_sum(x, idx, m) if name == "segmented_sum" else segmented_mul(x, y, idx, m)
            torch.from_dlpack(idx)[:100] = write  # shares memory; whether it shares the counter is torch's business
            idx.numpy()[-100:] = write
            try:
                out.sum().backward()
            except RuntimeError as error:
                assert "inplace" in str(error)


@every_op
def test_small_and_long_agree(case):
    """Below and above the size at which verdicts are kept: the same values and errors."""
    for n in (10, 100, 511, 512, 513, 1000, 5000):
        lengths = (n // 2, 0, n - n // 2)
        idx = case.index(lengths)
        inputs = case.inputs(n, 3)
        first = case(*inputs, idx, 3)
        assert same_bits(first, case(*inputs, idx, 3)) and same_bits(first, case(*inputs, idx.clone(), 3))
        idx[0] = 2
        with pytest.raises(ValueError, match="sorted"):
            case(*inputs, idx, 3)
