# SPDX-License-Identifier: Apache-2.0
"""Processes: forked after OpenMP ran in the parent, whose threads are not there; loading saved programs; several; too
little memory."""

import os
import pathlib
import shutil
import sys
import textwrap

import pytest
import torch
from native.process import finish, python, start


@pytest.mark.skipif(sys.platform != "linux", reason="a DataLoader forks on Linux only")
def test_collate_fn_of_forked_workers():
    """Also where the worker asks for two threads; a DataLoader sets one."""
    lines = python("""
    import torch
    from torch.utils.data import DataLoader
    from segmentops.torch import segment_ops
    idx = torch.arange(300_000) // 100
    data = torch.randn(4, 300_000, 3, dtype=torch.float64)

    def collate(items):
        torch.set_num_threads(2)
        x = data[items[0]]
        norms = segment_ops.segmented_rms_norm(x, idx, 3000)
        return segment_ops.segmented_sum(segment_ops.segmented_mul(x, norms, idx, 3000), idx, 3000)

    expected = [collate([item]) for item in range(4)]
    loader = DataLoader(range(4), num_workers=2, collate_fn=collate, multiprocessing_context="fork", timeout=600)
    print([torch.equal(got, right) for got, right in zip(loader, expected, strict=True)])
    """)
    assert lines == ["[True, True, True, True]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_first_call_in_a_forked_child():
    """While another thread of the parent compiles, and holds the lock."""
    lines = python("""
    import os, signal, threading
    import torch
    from segmentops import _building
    from segmentops.torch.segment_ops import segmented_sum
    torch.ones(10**6).sum()
    held = threading.Event()
    def hold():
        with _building.building():
            held.set()
            threading.Event().wait(600)
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        out = segmented_sum(torch.ones(5), torch.tensor([0, 0, 1, 1, 1]), 2)
        os._exit(out.tolist() != [2, 3])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert lines == ["0"]


# ------------------------------------------------------------------ saved programs that call ours
PROGRAM = """
    import sys
    import torch
    class Energy(torch.nn.Module):
        def forward(self, x, idx):
            y = ops.segmented_mul(x, ops.segmented_rms_norm(x, idx, 3), idx, 3)
            return ops.segmented_sum(y, idx, 3)
    x, idx = torch.arange(18.0).reshape(6, 3), torch.tensor([0, 0, 1, 1, 1, 2])
"""


def made_and_loaded(tmp_path, make, load):
    """What `load` prints in a process in which `import segmentops.torch` is all that is ours, of what `make` left."""
    ours = "    from segmentops.torch import segment_ops as ops\n"
    python(ours + PROGRAM + f"""
    path = {str(tmp_path / "program.pt2")!r}
    torch.save(Energy()(x, idx), {str(tmp_path / "right.pt")!r})
    {make}
    """)
    return python("    import segmentops.torch\n" + PROGRAM + f"""
    path = {str(tmp_path / "program.pt2")!r}
    program = {load}
    print(torch.equal(program(x, idx), torch.load({str(tmp_path / "right.pt")!r})))
    """)


def test_an_exported_program(tmp_path):
    lines = made_and_loaded(
        tmp_path,
        "torch.export.save(torch.export.export(Energy(), (x, idx)), path)",
        "torch.export.load(path).module()",
    )
    assert lines == ["True"]


def test_a_scripted_module(tmp_path):
    """Its class is of a file, where TorchScript reads it."""
    module = tmp_path / "energy.py"
    module.write_text("import torch\nfrom segmentops.torch import segment_ops as ops\n" + textwrap.dedent(
        PROGRAM.partition("import torch\n")[2].rpartition("    x, idx")[0]
    ))  # fmt: skip
    lines = made_and_loaded(
        tmp_path,
        f"sys.path.append({str(tmp_path)!r}); import energy; torch.jit.script(energy.Energy()).save(path)",
        "torch.jit.load(path)",
    )
    assert lines == ["True"]


@pytest.mark.skipif(
    not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)
def test_an_aotinductor_package(tmp_path):
    lines = made_and_loaded(
        tmp_path,
        "torch._inductor.aoti_compile_and_package(torch.export.export(Energy(), (x, idx)), package_path=path)",
        "torch._inductor.aoti_load_package(path)",
    )
    assert lines[-1] == "True"


def test_the_package_hands_on_the_public_functions():
    lines = python("""
    import segmentops.torch as nt
    names = nt.segment_ops.__all__
    print(set(names) <= set(nt.__all__), all(getattr(nt, n) is getattr(nt.segment_ops, n) for n in names))
    print(len(names) > 0 and all(hasattr(__import__("torch").ops.segmentops, n) for n in names))
    """)
    assert lines == ["True True", "True"]


# ------------------------------------------------------------------ several processes
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not there")
def test_distributed_tensors(tmp_path):
    """Replicated ones: the values and derivatives of plain tensors, to third order. Sharded ones are refused."""
    program = f"""
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    sys.path += {[p for p in sys.path if p]!r}
    from oracles import OPS
    from torch_battery import Case, make_index, same_bits
    rank = RANK
    dist.init_process_group("gloo", store=dist.FileStore({str(tmp_path / "store")!r}, 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    idx, n, m = make_index((3, 2, 0, 2, 1)), 8, 5

    def put(t, placement=Replicate()):
        return distribute_tensor(t.detach(), mesh, [placement])

    def values(f, inputs, idx, w):
        leaves = [a.requires_grad_() for a in inputs]
        found, outs = [], [f(*leaves, idx, m)]
        for order in range(3):
            found += outs
            total = sum(((o if order else o * w) ** 3).sum() for o in outs)
            outs = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        return [o.full_tensor() if hasattr(o, "full_tensor") else o for o in (*found, *outs)]

    for op in OPS:
        case = Case(op, (3, 3) if op.matrices else (3,), torch.float64, torch.int32)
        inputs, w = case.inputs(n, m), case.weights(n, m)
        expected = values(case, [a.detach() for a in inputs], idx, w)
        for weights in (put(w), put(w, Shard(0))):  # a cotangent that is sharded
            for index in (put(idx), idx):
                found = values(case, [put(a) for a in inputs], index, weights)
                for a, b in zip(found, expected, strict=True):
                    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)
        out = case(*[put(a) for a in inputs], put(idx), m)
        assert out.placements == (Replicate(),) and same_bits(out.to_local(), case(*inputs, idx, m))
        more = case(*[put(torch.cat([a, a])) for a in inputs], put(torch.cat([idx, idx + m])), 2 * m)
        assert more.shape == case.op.out.shape(2 * n, 2 * m, case.width)  # nothing kept of another num_segments
        names = [*(a.name for a in op.args), "idx"]
        for k, name in enumerate(names):
            arguments = [put(a, Shard(0)) if i == k else put(a) for i, a in enumerate([*inputs, idx])]
            try:
                case(*arguments, m)
            except ValueError as error:
                assert f"{{op.name}}: {{name}} is a DTensor sharded" in str(error), error
                assert f"{{name}}.redistribute(placements=" in str(error), error
            else:
                raise AssertionError(f"{{op.name}} {{name}}")
            whole = [a.redistribute(placements=[Replicate()] * a.device_mesh.ndim) for a in arguments]
            assert same_bits(case(*whole, m).to_local(), case(*inputs, idx, m))
        for bad in (put(idx.flip(0)), put(idx + 1)):
            try:
                case(*[put(a) for a in inputs], bad, m)
            except ValueError as error:
                assert "idx" in str(error)
            else:
                raise AssertionError(op.name)
    print("done")
    dist.destroy_process_group()
    """
    both = [start(program.replace("RANK", str(rank))) for rank in (0, 1)]
    assert [finish(process) for process in both] == [["done"], ["done"]]


# ------------------------------------------------------------------ little memory
def test_a_thread_with_a_small_stack():
    """128 KiB, as musl gives: values and derivatives of every op at any width."""
    lines = python(f"""
    import sys, threading
    sys.path[:0] = {[str(pathlib.Path(__file__).parents[k]) for k in (0, 1)]}
    import torch
    from oracles import OPS
    from torch_battery import Case, make_index

    def work(lengths, width, dtype):
        n, m = sum(lengths), len(lengths)
        for op in OPS:
            extent = (width,) if len(op.widths[-1]) < 2 else (width, min(width, 4))
            case = Case(op, extent, dtype, torch.int64)
            inputs = case.inputs(n, m, grad=True)
            value = case(*inputs, make_index(lengths), m)
            gradients = torch.autograd.grad((value**2).sum(), inputs, create_graph=True)
            torch.autograd.grad(sum((g**2).sum() for g in gradients), inputs)
        print(n, width, dtype, flush=True)

    torch.ones(10**6).sum()
    for dtype in (torch.float64, torch.bfloat16):
        work([1], 1, dtype)  # compiles
    threading.stack_size(128 << 10)
    for lengths, width in (([2, 3], 20), ([40, 70], 1091), ([10, 4200], 160), ([9000, 300], 3), ([9000], 1)):
        for dtype in (torch.float64, torch.bfloat16):
            worker = threading.Thread(target=work, args=(lengths, width, dtype))
            worker.start()
            worker.join()
    """)
    assert len(lines) == 2 + 10


def test_no_memory_for_scratch():
    """A MemoryError from the first call, which goes through Python, and from the second; the next one works."""
    lines = python("""
    import ctypes
    import torch
    from segmentops.native import _engine
    from segmentops.torch.segment_ops import segmented_mean

    heap, short = ctypes.CDLL(None).malloc, True
    heap.restype, heap.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
    allocate = prototype(lambda size: None if short else heap(size))
    functions = _engine.memory_functions
    _engine.memory_functions = lambda *names: [
        ctypes.cast(allocate, ctypes.c_void_p).value if name == "malloc" else functions(name)[0] for name in names
    ]
    x, idx = torch.ones(300, 640, requires_grad=True), torch.zeros(300, dtype=torch.int64)
    for short in (True, True, False):
        try:
            print(segmented_mean(x, idx, 1).sum().item())
        except MemoryError:
            print("MemoryError")
    """)
    assert lines == ["MemoryError", "MemoryError", "640.0"]


# ------------------------------------------------------------------ a second import
def test_a_second_import():
    """As a notebook makes it: graphs, compiled functions and a user's own operation outlive the modules."""
    lines = python("""
    import gc, sys, torch
    idx, x = torch.tensor([0, 0, 1]), torch.arange(3.0, requires_grad=True)

    def function():
        from segmentops.torch.segment_ops import segmented_rms_norm, segmented_sum
        return lambda x: segmented_sum(x, idx, 2).pow(2).sum() + segmented_rms_norm(x, idx, 2).sum()

    def chain():
        from segmentops.torch import register_warp_op_chain
        return register_warp_op_chain("second_import::double", lambda x: x * 2, lambda g, x: g * 2)

    def results(f, compiled):
        hessian = torch.func.hessian(f)(x.detach())
        return [f(x), compiled(x), torch.func.vmap(f)(torch.stack([x, x]))[1], torch.autograd.grad(f(x), x)[0], hessian]

    first = function()
    compiled = torch.compile(first, fullgraph=True, backend="aot_eager")
    expected, graph, double = results(first, compiled), first(x), chain()
    del first
    for name in [n for n in sys.modules if n.split(".")[0] == "segmentops"]:
        del sys.modules[name]
    gc.collect()
    again = function()
    found = results(again, compiled)
    print([torch.equal(a, b) for a, b in zip(found, expected, strict=True)])
    print(torch.equal(torch.autograd.grad(graph, x)[0], expected[3]), double(x).tolist())
    print(torch.equal(torch.compile(again, fullgraph=True, backend="aot_eager")(x), expected[0]))
    """)
    assert lines == ["[True, True, True, True, True]", "True [0.0, 2.0, 4.0]", "True"]
