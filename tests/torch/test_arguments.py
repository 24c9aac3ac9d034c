# SPDX-License-Identifier: Apache-2.0
"""Every bad argument, its error and its message; and the good ones that look odd."""

import re
import traceback

import numpy as np
import pytest
import torch
from oracles import OPS
from torch_battery import LENGTHS, assert_within, every_op, every_op_and_dtype, same_bits

from segmentops.ops.table import OPERATIONS

N, M = 11, 5  # LENGTHS["mixed"], one empty segment


def good(case):
    idx = case.index(LENGTHS["mixed"])
    return dict(zip([a.name for a in case.op.args], case.inputs(N, M), strict=True)), idx, M


def raises(case, error, words, inputs, idx, m):
    """The call raises; its message names the op and contains every word; nothing was modified."""
    with pytest.raises(error) as caught:
        case(*inputs.values(), idx, m)
    message = str(caught.value)
    assert type(caught.value) in (error if isinstance(error, tuple) else (error,))
    for word in (case.op.name, *words):
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", message), f"{word!r} is not in: {message}"
    return message


# ------------------------------------------------------------------ no tensor, no int
@every_op
@pytest.mark.parametrize("thing", [None, 1.5, [1.0, 2.0], np.zeros(N), "x"], ids=lambda t: type(t).__name__)
def test_no_tensor(case, thing):
    inputs, idx, m = good(case)
    for name in inputs:
        raises(case, TypeError, [name], inputs | {name: thing}, idx, m)
    raises(case, TypeError, ["idx"], inputs, thing, m)


@every_op
@pytest.mark.parametrize(
    "thing",
    [None, 5.0, "5", True, False, np.float64(5), np.bool_(True), torch.tensor(5.0), torch.tensor([5, 5]), [5], 5j,
     torch.tensor(True), torch.tensor([True]), torch.tensor(False), np.array(True)],
    ids=repr,
)  # fmt: skip
def test_num_segments_is_no_int(case, thing):
    inputs, idx, _ = good(case)
    raises(case, TypeError, ["num_segments"], inputs, idx, thing)
    one = {a.name: inputs[a.name][:1] if a.kind == "segment" else inputs[a.name] for a in case.op.args}
    raises(case, TypeError, ["num_segments"], one, torch.zeros_like(idx), thing)  # 1 would be right


@every_op_and_dtype
@pytest.mark.parametrize(
    "number",
    [np.int32(M), np.int64(M), np.uint8(M), torch.tensor(M), torch.tensor(M, dtype=torch.int32), torch.tensor([M])],
    ids=repr,
)
def test_num_segments_is_an_index(case, number):
    inputs, idx, m = good(case)
    assert same_bits(case(*inputs.values(), idx, number), case(*inputs.values(), idx, m))


@every_op
def test_num_segments_with_index_method(case):
    class Five:
        def __index__(self):
            return M

    inputs, idx, m = good(case)
    assert same_bits(case(*inputs.values(), idx, Five()), case(*inputs.values(), idx, m))


@every_op
def test_negative_num_segments(case):
    inputs, idx, _ = good(case)
    raises(case, ValueError, ["num_segments", "negative", "-1"], inputs, idx, -1)


@every_op
@pytest.mark.parametrize("number", [2**62, 2**63 - 1, 2**63, 2**70], ids=hex)
def test_num_segments_beyond_any_memory(case, number):
    inputs, idx, m = good(case)
    case(*inputs.values(), idx, m)
    raises(case, ValueError, ["num_segments"], inputs, idx, number)
    raises(case, ValueError, ["num_segments"], {k: a.requires_grad_() for k, a in inputs.items()}, idx, number)


@every_op
def test_missing_arguments(case):
    inputs, idx, _ = good(case)
    with pytest.raises(TypeError):
        case(*inputs.values(), idx)
    with pytest.raises(TypeError):
        case(*inputs.values(), idx, M, out=None)


# ------------------------------------------------------------------ dtypes
OTHER_DTYPES = [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.complex128]


@every_op
@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
def test_values_of_other_dtypes(case, dtype):
    inputs, idx, m = good(case)
    named = str(dtype).removeprefix("torch.")
    for name in inputs:
        message = raises(case, ValueError, [name], inputs | {name: inputs[name].to(dtype)}, idx, m)
        assert named in message
    every = {name: a.to(dtype) for name, a in inputs.items()}
    raises(case, ValueError, [next(iter(inputs))], every, idx, m)


@every_op
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_right_or_say_what_to_do(case, dtype):
    inputs, idx, m = good(case)
    halves = {name: a.to(dtype) for name, a in inputs.items()}
    try:
        out = case(*halves.values(), idx, m)
    except (ValueError, NotImplementedError) as error:
        assert case.op.name in str(error) and "float32" in str(error)
        assert str(dtype).removeprefix("torch.") in str(error)
    else:
        assert out.dtype == dtype
        assert_within(out, *case.oracle([a.double() for a in halves.values()], idx, m), 4)


@every_op
def test_mixed_dtypes(case):
    inputs, idx, m = good(case)
    if len(inputs) == 1:
        pytest.skip("one input")
    for name in inputs:
        message = raises(case, ValueError, [], inputs | {name: inputs[name].float()}, idx, m)
        assert "float32" in message and "float64" in message
    first, second = inputs
    with torch.autocast("cpu", torch.bfloat16):  # which makes such pairs
        message = raises(case, ValueError, [second], inputs | {second: inputs[second].bfloat16()}, idx, m)
    assert f"{second}.to({first}.dtype)" in message and "autocast" in message


@every_op
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.bool, torch.complex64], ids=str
)
def test_index_of_other_dtypes(case, dtype):
    """uint8 and bool too: they are masks elsewhere."""
    inputs, idx, m = good(case)
    message = raises(case, ValueError, ["idx", "int32"], inputs, idx.to(dtype), m)
    assert str(dtype).removeprefix("torch.") in message


# ------------------------------------------------------------------ what to do instead
@every_op
def test_hints(case):
    """Each message ends with what to write; what it says works."""
    inputs, idx, m = good(case)
    for name, array in inputs.items():
        for thing in (array.numpy(), array.tolist(), tuple(array.tolist())):
            assert f"torch.as_tensor({name})" in raises(case, TypeError, [name], inputs | {name: thing}, idx, m)
            again = torch.as_tensor(thing, dtype=case.dtype)
            assert same_bits(case(*(inputs | {name: again}).values(), idx, m), case(*inputs.values(), idx, m))
        for thing in (None, 1.5, "x"):
            assert "as_tensor" not in raises(case, TypeError, [name], inputs | {name: thing}, idx, m)
        message = raises(case, ValueError, [name], inputs | {name: array.long()}, idx, m)
        assert message.endswith(f"{name}.to(torch.float32)")
        message = raises(case, ValueError, [name], inputs | {name: array.to(torch.complex64)}, idx, m)
        assert "float32)" not in message  # which would drop the imaginary part
    for thing in (idx.numpy(), idx.tolist()):
        assert "torch.as_tensor(idx)" in raises(case, TypeError, ["idx"], inputs, thing, m)
    assert raises(case, ValueError, ["idx"], inputs, idx.double(), m).endswith("idx.to(torch.int32)")


@every_op
def test_a_row_a_segment_where_a_scalar_is_wanted(case):
    inputs, idx, m = good(case)
    scalars = [a.name for a in case.op.args if a.kind == "segment" and inputs[a.name].dim() == 1]
    if not scalars:
        pytest.skip("no operand is a scalar per segment")
    (name,) = scalars
    first = next(iter(inputs))
    rows = inputs[name][:, None].expand(m, 3)
    message = raises(case, ValueError, [name, "1-D"], inputs | {name: rows}, idx, m)
    assert "of shape (M,), got (5, 3)" in message and message.endswith(f"{first} * {name}[idx]")
    assert same_bits(inputs[first] * rows[idx], case(*inputs.values(), idx, m))
    assert "(M,)" in raises(case, ValueError, [name], inputs | {name: inputs[name][0]}, idx, m)


@every_op
def test_every_frame_of_an_error_has_its_source(case):
    """As a notebook shows them; what is generated has a source, too."""
    inputs, idx, m = good(case)
    for a in inputs.values():
        a.requires_grad_()

    def backward():
        case(*inputs.values(), idx, m).backward(torch.ones(3, 3, 3, 3))

    def transformed():
        torch.func.grad(lambda *a: case(*a, idx.double(), m).sum())(*inputs.values())

    def batched():
        torch.func.vmap(lambda i: case(*inputs.values(), i, m - 1))(idx.flip(0).expand(2, 2, N))

    for run in (backward, transformed, batched, lambda: case(*inputs.values(), idx.flip(0), m)):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            run()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert len(frames) > 2
        assert [(f.filename, f.lineno) for f in frames if not f.line] == []


# ------------------------------------------------------------------ layouts
@every_op
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_that_are_not_dense(case):
    inputs, idx, m = good(case)
    for name in inputs:
        sparse = inputs[name].to_sparse()
        raises(case, ValueError, [name, "sparse_coo", "to_dense"], inputs | {name: sparse}, idx, m)
        ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        raises(case, ValueError, [name, "nested"], inputs | {name: ragged}, idx, m)
    raises(case, ValueError, ["idx", "sparse_coo"], inputs, idx.to_sparse(), m)


# ------------------------------------------------------------------ rank and shape
@every_op
def test_index_of_other_ranks(case):
    inputs, idx, m = good(case)
    for bad in (idx[:, None], idx[None, :], torch.tensor(0, dtype=torch.int32), idx.new_zeros(2, 3, 4)):
        raises(case, ValueError, ["idx", "1-D", str(tuple(bad.shape))], inputs, bad, m)


@every_op
def test_values_of_other_ranks(case):
    inputs, idx, m = good(case)
    for array in case.op.args:
        bad = inputs | {array.name: torch.tensor(1.0, dtype=case.dtype)}
        raises(case, ValueError, [array.name], bad, idx, m)
        if array.kind == "segment" or case.op.matrices:
            raises(case, ValueError, [array.name], inputs | {array.name: inputs[array.name][..., None]}, idx, m)
            raises(case, ValueError, [array.name], inputs | {array.name: inputs[array.name][0]}, idx, m)


@every_op
def test_more_segment_numbers_than_elements(case):
    """x of 4 elements with idx of 6, and the reverse."""
    for elements, numbers in ((4, 6), (6, 4), (0, 2), (2, 0)):
        inputs = dict(zip([a.name for a in case.op.args], case.inputs(elements, 3), strict=True))
        idx = torch.zeros(numbers, dtype=torch.int32)
        message = raises(case, ValueError, ["idx", next(iter(inputs))], inputs, idx, 3)
        assert str(elements) in message and str(numbers) in message


@every_op
def test_shapes_that_do_not_fit_each_other(case):
    inputs, idx, m = good(case)
    if case.op.short == "dot":
        for bad in (
            inputs["y"][:-1],
            inputs["y"][:, :2],
            inputs["y"][:, :, None],
            inputs["y"][:, 0],
            inputs["y"][:, :1],
        ):
            raises(case, ValueError, ["y"], inputs | {"y": bad}, idx, m)
    elif case.op.matrices:
        for bad in (inputs["m"][:, :2], inputs["m"][:, :, :, None], inputs["m"][0]):
            raises(case, ValueError, ["m"], inputs | {"m": bad}, idx, m)
    elif case.op.short == "mul":
        for bad in (inputs["y"][:, None], inputs["y"][:, None].expand(M, 3)):
            raises(case, ValueError, ["y"], inputs | {"y": bad}, idx, m)
    else:
        pytest.skip("one input")


@every_op
def test_num_segments_disagrees_with_an_array(case):
    segment = [a.name for a in case.op.args if a.kind == "segment"]
    if not segment:
        pytest.skip("no array with a row per segment")
    inputs, idx, m = good(case)
    for number in (m - 1, m + 1, 0, 10**9):
        message = raises(case, ValueError, ["num_segments", *segment], inputs, idx, number)
        assert str(number) in message and str(m) in message


@every_op
def test_elements_without_segments(case):
    inputs, idx, _ = good(case)
    inputs |= {a.name: inputs[a.name][:0] for a in case.op.args if a.kind == "segment"}
    raises(case, ValueError, ["num_segments"], inputs, idx, 0)


# ------------------------------------------------------------------ devices
@every_op
def test_devices_that_differ(case):
    inputs, idx, m = good(case)
    first, *others = inputs
    raises(case, ValueError, ["idx", "meta", "cpu"], inputs, idx.to("meta"), m)
    for name in others:
        raises(case, ValueError, [name, "meta", "cpu"], inputs | {name: inputs[name].to("meta")}, idx, m)
    message = raises(case, ValueError, ["meta", "cpu"], inputs | {first: inputs[first].to("meta")}, idx, m)
    assert first in message or "idx" in message


# ------------------------------------------------------------------ values of idx
def put(case, position, value, dtype=torch.int64):
    idx = case.index(LENGTHS["mixed"]).to(dtype)
    idx[position] = value
    return idx


@every_op
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_index_out_of_range(case, dtype):
    inputs, _, m = good(case)
    top = torch.iinfo(dtype).max
    for position, value in ((0, -1), (0, -(2**31)), (0, torch.iinfo(dtype).min)):
        idx = put(case, position, value, dtype)
        raises(case, ValueError, ["idx", "range", "negative", f"idx[{position}]", str(value), str(m)], inputs, idx, m)
    for position, value in ((N - 1, M), (N - 1, M + 1), (N - 1, top)):
        idx = put(case, position, value, dtype)
        raises(case, ValueError, ["idx", "range", f"idx[{position}]", str(value), str(m)], inputs, idx, m)


@every_op
def test_index_is_not_narrowed(case):
    """2**32 + 1 is not 1, and -2**32 + 1 neither."""
    inputs, _, m = good(case)
    for position, value in ((N - 1, 2**32 + 1), (N - 1, 2**32), (0, -(2**32)), (0, -(2**32) + 1), (N - 1, 2**62)):
        raises(case, ValueError, ["idx", "range", str(value)], inputs, put(case, position, value), m)


@every_op
def test_the_first_offending_position(case):
    inputs, idx, m = good(case)
    bad = idx.clone()
    bad[7:] = M
    raises(case, ValueError, ["idx[7]", "range", str(M)], inputs, bad, m)
    bad = idx.clone()
    bad[:2] = torch.tensor([-7, -3], dtype=bad.dtype)
    raises(case, ValueError, ["idx[0]", "-7", "negative"], inputs, bad, m)


@every_op
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_unsorted_index(case, dtype):
    inputs, idx, m = good(case)
    for position in (1, 2, 6, N - 1):
        bad = idx.to(dtype).clone()
        if bad[position - 1] == 0:
            bad[position - 1] = 1
        bad[position] = 0
        at = next(i for i in range(1, N) if bad[i] < bad[i - 1])
        message = raises(case, ValueError, ["idx", "sorted", f"idx[{at}]", str(int(bad[at]))], inputs, bad, m)
        assert "torch.sort" in message or "argsort" in message, "the cure is missing"
    raises(case, ValueError, ["idx", "sorted"], inputs, idx.flip(0), m)


@every_op
def test_unsorted_far_from_the_start(case):
    """Beyond what one vector, one block or one thread looks at."""
    n = 70_001
    inputs = dict(zip([a.name for a in case.op.args], case.inputs(n, 3), strict=True))
    for position in (1, 15, 16, 63, 64, 65, 4095, 4096, 16_384, 40_000, n - 1):
        idx = torch.ones(n, dtype=torch.int32)
        idx[position] = 0
        raises(case, ValueError, ["sorted", f"idx[{position}]"], inputs, idx, 3)
        idx = torch.ones(n, dtype=torch.int32)
        idx[position] = 3
        raises(case, ValueError, ["range", f"idx[{position}]"], inputs, idx, 3)
        idx[position] = -1
        raises(case, ValueError, ["range", f"idx[{position}]"], inputs, idx, 3)


@every_op
def test_the_cure_works(case):
    inputs, idx, m = good(case)
    shuffled = idx[torch.randperm(N, generator=case.generator(0))]
    ordered, order = torch.sort(shuffled, stable=True)
    inputs = {a.name: inputs[a.name][order] if a.kind == "element" else inputs[a.name] for a in case.op.args}
    case(*inputs.values(), ordered, m)


@every_op
def test_bad_index_with_gradients(case):
    """The same checks where a graph is recorded."""
    inputs, idx, m = good(case)
    inputs = {name: a.requires_grad_() for name, a in inputs.items()}
    raises(case, ValueError, ["range"], inputs, put(case, N - 1, M), m)
    raises(case, ValueError, ["sorted"], inputs, idx.flip(0), m)
    raises(case, ValueError, ["1-D"], inputs, idx[None], m)
    raises(case, TypeError, ["num_segments"], inputs, idx, 5.0)


# ------------------------------------------------------------------ order of the checks
@every_op
def test_order_of_checks(case):
    """What is wrong first is what is reported: types, then dtypes and shapes, then the values of idx."""
    inputs, idx, m = good(case)
    first = next(iter(inputs))
    short = {a.name: inputs[a.name][:4] if a.kind == "element" else inputs[a.name] for a in case.op.args}
    raises(case, TypeError, [first], inputs | {first: None}, idx.double(), -1)
    raises(case, ValueError, ["int32"], short, idx.double(), m)
    raises(case, ValueError, [first, "idx"], short, torch.full((N,), 99, dtype=torch.int32), m)
    # out of range before unsorted, wherever they are
    bad = idx.clone()
    bad[1], bad[2], bad[N - 1] = 1, 0, M
    raises(case, ValueError, ["range", f"idx[{N - 1}]"], inputs, bad, m)
    bad[N - 1] = -2
    raises(case, ValueError, ["range", "negative"], inputs, bad, m)
    segment = [a.name for a in case.op.args if a.kind == "segment"]
    if segment:  # before anything about the values of idx
        raises(case, ValueError, ["num_segments", *segment], inputs, bad, m + 1)


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.short)
def test_every_op_has_a_docstring_and_the_published_names(op):
    import inspect

    from segmentops.torch import segment_ops

    function = getattr(segment_ops, op.name)
    assert op.name in segment_ops.__all__
    names = [*(a.name for a in op.args), "idx", "num_segments"]
    parameters = [*inspect.signature(function).parameters.values()]
    assert [p.name for p in parameters[: len(names)]] == names
    assert all(p.default is not p.empty for p in parameters[len(names) :])
    assert all(word in function.__doc__ for word in ("Parameters", "Returns", "Examples", "sorted"))


# ------------------------------------------------------------------ the dispatcher's operations
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_the_dispatcher_read_nothing_that_is_not_there(name):
    """Each operand, idx and number of segments that does not fit is refused, on any device, by its name."""
    op, full = OPERATIONS[name], "segmented_" + name
    target = getattr(torch.ops.segmentops, full)
    sizes = {"n": N, "m": M, "k": 3, "j": 2}
    good = {
        o.name: torch.zeros(
            [sizes[d] for d in (o.lead, *o.trail)], dtype=getattr(torch, "int64" if o.dtype else "float32")
        )
        for o in op.operands
    }
    idx = torch.zeros(N, dtype=torch.int32)
    target(*good.values(), idx, M)

    def refused(label, tensors, idx=idx, m=M):
        for device in ("cpu", "meta"):
            with pytest.raises(ValueError, match=rf"{full}: .*\b{label}\b"):
                target(*(t.to(device) for t in tensors.values()), idx.to(device), m)

    bound = set()
    for o in op.operands:
        label, array = o.name, good[o.name]
        others = [array[:-1], array.new_zeros(()), array.to(torch.int16)]
        if op.matrices or not o.trail:
            others += [array[0], array[..., None]]
        others += [array.narrow(1 + d, 0, 1) for d, letter in enumerate(o.trail) if letter in bound]
        bound.update(o.trail)
        for other in others:
            refused(label, good | {label: other})
    for other in (idx[:-1], idx[:, None], idx.to(torch.int16)):
        if len(other) == N or any(o.lead == "n" for o in op.operands):
            refused("idx", good, other)


@pytest.mark.parametrize("op", [op for op in OPS if op.selects], ids=lambda op: op.short)
def test_fill_of_empty_segments(op):
    """Eager and scripted; derivatives are 0 there."""
    from segmentops.torch import segment_ops

    function = getattr(segment_ops, op.name)
    x, idx = torch.tensor([[1.0, -2], [3, -4]], requires_grad=True), torch.tensor([1, 1])
    for call in (function, torch.jit.script(function)):
        out = call(x, idx, 3, -7.0)
        assert (out[[0, 2]] == -7).all() and out[1].tolist() == call(x, idx, 3)[1].tolist()
        (grad,) = torch.autograd.grad(out[[0, 2]].sum(), x)
        assert (grad == 0).all()
    with pytest.raises(TypeError, match=f"{op.name}: fill must be a number, got str"):
        function(x, idx, 3, "0")
