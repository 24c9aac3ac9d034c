# SPDX-License-Identifier: Apache-2.0
"""The binding where torch lacks a private name that it uses: right results, and one warning that says what is lost.

The names are hidden from `_compat` while it is imported, each in a fork of one process that has imported torch.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import traceback
import warnings

import pytest
import torch

SLOW = "goes through the dispatcher"
COMPOSED = "compositions of torch's operations"
UNCHECKED = "is not checked"
UNSEEN = "a freed storage is not noticed"

# Names of torch, and what the warning says; None: something else does the same, no warning.
NAMES = {
    "_C._len_torch_dispatch_stack": SLOW,
    "_C._are_functorch_transforms_active": None,
    "_C._get_tracing_state": None,
    "_C._autograd._profiler_enabled": "a profiler does not name",
    "Tensor.__dlpack_c_exchange_api__": None,
    "_C._len_torch_function_stack": SLOW,
    "_C._get_function_stack_at": "set_default_device",
    "autograd.forward_ad._current_level": SLOW,
    "_C._functorch.is_gradtrackingtensor": UNCHECKED,
    "_C._functorch.get_unwrapped": UNCHECKED,
    "_C._functorch.is_functorch_wrapped_tensor": UNSEEN,
    "_is_functional_tensor": UNSEEN,
    "_C._aoti.unsafe_alloc_void_ptrs_from_tensors": None,
    "_C._AutoDispatchBelowAutograd": None,
    "autograd.forward_ad._set_fwd_grad_enabled _C._set_fwd_grad_enabled": COMPOSED,
    "_C._functorch.get_interpreter_stack": None,
    "_C._functorch.peek_interpreter_stack": None,
    "_C._functorch.TransformType.Jvp": None,
    "autograd.function._SingleLevelFunction": COMPOSED,
    "_functorch.autograd_function.enable_single_level_autograd_function": COMPOSED,
    "_C._disabled_torch_dispatch_impl": None,
    "_C._are_functorch_transforms_active _C._functorch.peek_interpreter_stack": SLOW,
    "": None,
}


# ------------------------------------------------------------------ the tests
@pytest.fixture(scope="module")
def outcomes():
    """What each fork says: the names, the warnings, what went wrong."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, __file__, *NAMES], env=environment, capture_output=True, text=True, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(NAMES), run.stderr[-3000:]
    return {found["names"]: found for found in map(json.loads, lines)}


@pytest.mark.parametrize("names", NAMES, ids=lambda n: n.rpartition(".")[2] or "nothing")
def test_without(names, outcomes):
    found = outcomes[names]
    if "absent" in found:
        pytest.skip(f"this torch has no {found['absent']}")
    assert found["wrong"] == []
    said = found["warnings"]
    if NAMES[names] is None:
        assert said == []
    else:
        assert len(said) == 1 and NAMES[names] in said[0] and f"torch.{names.split()[0]}" in said[0]


# ------------------------------------------------------------------ in the fork
def hide(names):
    """`_compat` finds everything but these."""
    hidden = set()
    for path in names.split():
        *parents, name = path.split(".")
        found = torch
        for parent in parents:
            found = getattr(found, parent)
        if not hasattr(found, name):
            raise LookupError(path)
        hidden.add((id(found), name))

    class Loader(importlib.machinery.SourceFileLoader):
        def exec_module(self, module):
            module.hasattr = lambda o, name: (id(o), name) not in hidden and hasattr(o, name)
            module.getattr = lambda o, name, *other: (
                other[0] if (id(o), name) in hidden else getattr(o, name, *other)
            )
            super().exec_module(module)

    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            if name == "segmentops.torch._compat":
                file = str(pathlib.Path(path[0]) / "_compat.py")
                return importlib.util.spec_from_file_location(name, file, loader=Loader(name, file))
            return None

    sys.meta_path.insert(0, Finder)


def battery(names):
    """Each of the ways that a call can take; yields what is wrong."""
    from oracles import OPS
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad as fw
    from torch.func import functionalize, grad, hessian, jvp, vmap
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.testing._internal.two_tensor import TwoTensor
    from torch_battery import Case, assert_close, make_index, same_bits

    n, m = 8, 5
    idx, other = make_index((3, 2, 0, 2, 1)), make_index((1, 0, 4, 0, 3))
    cases = [Case(op, (3,), torch.float64, torch.int32) for op in OPS if op.short in ("rms_norm", "mul")]

    def loss(f, w):
        return lambda *a: (f(*a, idx, m) ** 3 * w).sum()

    def derivatives(f):
        def run(*a):
            leaves = [t.detach().requires_grad_() for t in a]
            grads = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
            return [*grads, *torch.autograd.grad(sum(g.sin().sum() for g in grads), leaves)]

        return run

    def dual(f):
        def run(*a):
            with fw.dual_level():
                return list(fw.unpack_dual(f(*[fw.make_dual(t, t.cos()) for t in a])))

        return run

    def default_device(f):
        def run(*a):
            torch.set_default_device("cpu")
            try:
                return f(*a)
            finally:
                torch.set_default_device(None)

        return run

    def made(f):
        return lambda *a: make_fx(derivatives(f))(*[t + 1 for t in a])(*a)

    ways = {
        "derivatives": (derivatives, derivatives),
        "grad": (grad, grad),
        "hessian": (hessian, hessian),
        "jvp": (lambda f: lambda *a: jvp(f, a, a),) * 2,
        "grad of jvp": (lambda f: grad(lambda *a: jvp(f, a, a)[1]),) * 2,
        "vmap of grad": (lambda f: lambda *a: vmap(grad(f))(*[torch.stack([t, t + 1]) for t in a]),) * 2,
        "functionalize": (lambda f: functionalize(grad(f)), grad),
        "dual tensors": (dual, dual),
        "default device": (default_device, lambda f: f),
        "make_fx": (made, derivatives),
    }
    if "tracing" in names:
        ways["jit.trace"] = (
            lambda f: lambda *a: torch.jit.trace(f, tuple(t + 1 for t in a), check_trace=False)(*a),
            lambda f: f,
        )
    if "_current_level" in names or "Jvp" in names:
        ways["compiled jvp"] = (
            lambda f: torch.compile(ways["jvp"][0](f), fullgraph=True, backend="aot_eager"),
            ways["jvp"][1],
        )

    def close(a, b):
        if isinstance(a, torch.Tensor):
            assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-10)
        else:
            for x, y in zip(a, b, strict=True):
                close(x, y)

    def others(case, inputs):
        """What has no composition to compare with, or needs none."""
        indices, both = torch.stack([idx, other]), [torch.stack([a, a + 1]) for a in inputs]
        found, expected = (vmap(lambda *a, f=f: f(*a, m))(*both, indices) for f in (case, case.composed))
        close(found, expected)
        out = case(*inputs, idx, m)
        with FakeTensorMode() as mode:
            assert case(*map(mode.from_tensor, inputs), mode.from_tensor(idx), m).shape == out.shape
        two = case(*[TwoTensor(a, a + 1) for a in inputs], TwoTensor(idx, idx), m)
        assert same_bits(two.a, out) and same_bits(two.b, case(*[a + 1 for a in inputs], idx, m))
        for bad in (idx.flip(0), idx + 1, torch.nn.Parameter(idx.flip(0), requires_grad=False)):
            with pytest.raises(ValueError, match="idx"):
                case(*inputs, bad, m)

    for case in cases:
        inputs, w = case.inputs(n, m), case.weights(n, m)
        for name, (ours, theirs) in ways.items():
            try:
                close(ours(loss(case, w))(*inputs), theirs(loss(case.composed, w))(*inputs))
            except Exception:
                yield f"{case} {name}: {traceback.format_exc(limit=-3)}"
        try:
            others(case, inputs)
        except Exception:
            yield f"{case}: {traceback.format_exc(limit=-3)}"


def fork(names):
    found = {"names": names, "wrong": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore")
        warnings.filterwarnings("always", "segmentops")
        try:
            hide(names)
            found["wrong"] = list(battery(names))
        except LookupError as error:
            found["absent"] = str(error)
        except Exception:
            found["wrong"] = [traceback.format_exc()]
    found["warnings"] = [str(w.message) for w in caught]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    import torch._decomp.decompositions_for_jvp
    import torch._dynamo
    import torch.testing._internal.two_tensor
    import warp

    warp.init()
    for names in sys.argv[1:]:
        process = os.fork()
        if not process:
            fork(names)
            os._exit(0)
        os.waitpid(process, 0)
