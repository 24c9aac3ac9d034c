# SPDX-License-Identifier: Apache-2.0
"""Tensors whose storage was freed or shrunk after they were made: a RuntimeError on every route, never a read.

In a process of its own, since a read of what is not there ends it.
"""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from oracles import OPS
from torch.func import grad, hessian, jvp, vmap
from torch_battery import Case, make_index, same_bits

from segmentops.ops.table import OPERATIONS
from segmentops.torch import _compat, _fast

N, M = 11, 5
IDX = make_index((3, 1, 0, 2, 5))
CHECKS = []


def check(function):
    CHECKS.append(function.__name__)
    return function


# ------------------------------------------------------------------ the tests
@pytest.fixture(scope="module")
def said():
    """What the process says of each check."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    found = {name: [] for name in CHECKS}
    for line in run.stdout.splitlines():
        name, _, what = line.partition(": ")
        if name in found:
            found[name].append(what)
    return found, run.stderr[-3000:]


@pytest.mark.parametrize("name", [
    "every_operation", "public_functions", "without_the_c_interface", "in_transforms", "saved_operands", "compiled",
])  # fmt: skip
def test_storage(name, said):
    assert name in CHECKS
    found, errors = said
    assert found[name] == ["done"], f"{found[name]} {errors}"


def test_the_size_of_a_storage_is_asked_natively():
    """Where torch has its C interface: else every call would ask with attributes."""
    functions = _compat.storage_functions()
    world = _fast._world()
    assert (world.storage_size, world.storage_of, world.implementation) == (functions or (None, None, None))
    if hasattr(torch._C, "_aoti") and sys.platform == "linux":
        assert functions is not None


# ------------------------------------------------------------------ in the process
def freed(t):
    t.untyped_storage().resize_(0)
    return t


def short(t):
    t.untyped_storage().resize_(t.untyped_storage().nbytes() - 1)
    return t


def view(t):
    """Of a freed storage, and its address is not 0."""
    return freed(torch.cat([t, t])[len(t) :])


def strided(t):
    return short(torch.stack([t, t], -1)[..., 1])


def expanded(t):
    return freed(t[:1].clone().expand(t.shape))


DAMAGES = (freed, short, view, strided, expanded)


def refused(what, run, label=""):
    try:
        run()
    except RuntimeError as error:
        if "out of bounds for storage" in str(error):  # torch's own word, in a transform
            return
        if f"{label} has no memory" not in str(error) or "segmented_" not in str(error):
            yield f"{what}: {error}"
    else:
        yield f"{what}: no error"


def each_argument(good, labels):
    """(label, damage, arguments), in which one is damaged."""
    for k, label in enumerate(labels):
        for damage in DAMAGES:
            yield label, damage.__name__, [damage(t.clone()) if i == k else t for i, t in enumerate(good)]


@check
def every_operation():
    """Those of the dispatcher, on each way to one."""
    from segmentops.torch import _cuda, _derivatives, _kernels

    sizes = {"n": N, "m": M, "k": 3, "j": 2}
    for name, op in OPERATIONS.items():
        types = ["int64" if o.dtype else "float32" for o in op.operands]
        shapes = [[sizes[d] for d in (o.lead, *o.trail)] for o in op.operands]
        good = [torch.zeros(s, dtype=getattr(torch, t)) for s, t in zip(shapes, types, strict=True)] + [IDX]
        ways = {
            "dispatcher": getattr(torch.ops.segmentops, "segmented_" + name),
            "entry": _derivatives.ENTRIES[name],
            "kernel": _kernels.KERNELS[name],
            "call": lambda *a, name=name: _kernels.call(name, *a),
            "cuda": _cuda.kernel(name),
        }
        ways["dispatcher"](*good, M)
        for label, damage, arguments in each_argument(good, [*(o.name for o in op.operands), "idx"]):
            for way, function in ways.items():
                yield from refused(f"{name} {label} {damage} {way}", lambda f=function, a=arguments: f(*a, M), label)


def cases():
    for op in OPS:
        for width in ((3, 3) if op.matrices else (3,), () if op.short == "sum" else None):
            if width is not None:
                yield Case(op, width, torch.float64, torch.int32)


@check
def public_functions():
    """With and without gradients, contiguous and not, also where idx was found valid before."""
    for case in cases():
        for n in (N, 2000):
            idx = torch.arange(n, dtype=torch.int32) * M // n
            good = [*case.inputs(n, M), idx]
            case(*good, M)
            for label, damage, arguments in each_argument(good, [*(a.name for a in case.op.args), "idx"]):
                yield from refused(f"{case} {label} {damage}", lambda c=case, a=arguments: c(*a, M))
                for a in arguments[:-1]:
                    a.requires_grad_()
                yield from refused(f"{case} {label} {damage} grad", lambda c=case, a=arguments: c(*a, M))
            kept = idx.clone()
            case(*good[:-1], kept, M)
            freed(kept)
            yield from refused(f"{case} known idx", lambda c=case, a=good[:-1], i=kept: c(*a, i, M), "idx")


@check
def without_the_c_interface():
    """The sizes asked with attributes, as where torch lacks its C interface or DLPack's."""
    world = _fast._world()
    functions = world.storage_size, world.exchange
    for world.storage_size, world.exchange in ((None, functions[1]), (None, None)):
        for case in cases():
            good = [*case.inputs(N, M), IDX]
            yield from () if same_bits(case(*good, M), case(*good, M)) else ["wrong"]
            for label, damage, arguments in each_argument(good, [*(a.name for a in case.op.args), "idx"]):
                yield from refused(f"{case} {label} {damage}", lambda c=case, a=arguments: c(*a, M))
    world.storage_size, world.exchange = functions


@check
def in_transforms():
    for case in cases():
        good = case.inputs(N, M)
        for label, damage, arguments in each_argument([*good, IDX], [*(a.name for a in case.op.args), "idx"]):
            *inputs, idx = arguments
            indices = freed(IDX.repeat(2, 1)) if label == "idx" else IDX.repeat(2, 1)

            def value(*a, case=case, idx=idx):
                return (case(*a, idx, M) ** 2).sum()

            ways = {
                "grad": lambda v=value, a=inputs: grad(v, tuple(range(len(a))))(*a),
                "jvp": lambda v=value, a=inputs, g=good: jvp(v, tuple(a), tuple(g)),
                "hessian": lambda v=value, a=inputs: hessian(v)(*a),
                "vmap": lambda c=case, a=inputs, i=indices: vmap(lambda i: c(*a, i, M))(i),
                "vmap of grad": lambda v=value, a=inputs: vmap(lambda s: grad(lambda *a: v(*a) * s)(*a))(torch.ones(2)),
            }
            for way, run in ways.items():
                yield from refused(f"{case} {label} {damage} {way}", run)


@check
def saved_operands():
    """Freed between forward and backward, to third order: error, or what needs no saved value; restored, its bits."""
    for case in cases():
        for order, k in itertools.product((1, 2, 3), range(len(case.op.args) + 1)):
            inputs = [a.requires_grad_() for a in case.inputs(N, M)]
            idx = IDX.clone()
            target = [*inputs, idx][k]
            outs = [case(*inputs, idx, M)]
            for _ in range(order - 1):
                total = sum((o.sin() * o).sum() for o in outs)
                outs = list(torch.autograd.grad(total, inputs, create_graph=True))
            storage, kept = target.untyped_storage(), target.detach().clone()
            seeds = [torch.ones_like(o) for o in outs]

            def backward(outs=outs, inputs=inputs, seeds=seeds):
                return torch.autograd.grad(outs, inputs, seeds, retain_graph=True, allow_unused=True)

            expected = backward()
            size = storage.nbytes()
            storage.resize_(0)
            try:
                found = backward()
                if order == 1 and not all(map(same_bits, found, expected)):
                    yield f"{case} {order} {k}: wrong"
            except RuntimeError as error:
                if "has no memory" not in str(error):
                    yield f"{case} {order} {k}: {error}"
            storage.resize_(size)
            target.detach().numpy()[...] = kept.numpy()  # torch does not count that as a change
            if not all(a is b or same_bits(a, b) for a, b in zip(backward(), expected, strict=True)):
                yield f"{case} {order} {k}: other bits"


@check
def compiled():
    for case in cases():
        good = [*case.inputs(N, M), IDX.clone()]
        torch._dynamo.reset()
        program = torch.compile(lambda *a, c=case: c(*a, M), fullgraph=True, backend="aot_eager")
        program(*good)
        for t in good:
            size, kept = t.untyped_storage().nbytes(), t.clone()
            freed(t)
            yield from refused(f"{case}", lambda p=program, a=good: p(*a))
            t.untyped_storage().resize_(size)
            t.copy_(kept)


if __name__ == "__main__":
    for name in CHECKS:
        for line in globals()[name]():
            print(f"{name}: {line}", flush=True)
        print(f"{name}: done", flush=True)
