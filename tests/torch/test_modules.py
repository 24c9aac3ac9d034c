# SPDX-License-Identifier: Apache-2.0
"""Modules that hold idx as a buffer: copied, saved, moved, compiled again, and as functions of their parameters."""

import copy
import io
import linecache

import pytest
import torch
from torch.func import functional_call, grad, hessian, stack_module_state, vmap
from torch_battery import assert_close, every_op, make_index, same_bits

from segmentops.torch import register_warp_op_chain, segment_ops

N, M = 8, 5
IDX = make_index((3, 2, 0, 2, 1))
pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore:.torch.jit")]


class Pool(torch.nn.Module):
    """One op on its own parameters times an input."""

    def __init__(self, case, function, seed=0):
        super().__init__()
        self.function, self.w = function, case.weights(N, M)
        self.register_buffer("idx", IDX.clone())
        self.inputs = torch.nn.ParameterList(case.inputs(N, M, seed))

    def forward(self, x):
        return (self.function(*[a * x for a in self.inputs], self.idx, M).sin() * self.w).sum()


class Readout(torch.nn.Module):
    """Energies of molecules; picklable by name."""

    def __init__(self, molecules):
        super().__init__()
        self.register_buffer("idx", torch.tensor(molecules))
        self.linear = torch.nn.Linear(3, 1, bias=False)

    def forward(self, x):
        energy = self.linear(x.tanh())[:, 0] + segment_ops.segmented_mul(x, self.scale(x), self.idx, 3).sum(1)
        return segment_ops.segmented_sum(energy, self.idx, 3)

    def scale(self, x):
        return segment_ops.segmented_rms_norm(x, self.idx, 3)


def outcome(module, x):
    """Energies, forces and the gradient of the weights."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    energy = module(x)
    (force,) = torch.autograd.grad(energy, x, torch.arange(1.0, 4.0, dtype=x.dtype), retain_graph=True)
    energy.sum().backward()
    return [energy.detach(), force, module.linear.weight.grad.clone()]


@pytest.mark.parametrize("n", [5, 3000])
def test_a_module_is_copied_saved_and_moved(n):
    """Each copy gives the same bits, and its idx is its own: an edit of one is found, the others go on."""
    molecules = [k * 3 // n for k in range(n)]
    module = Readout(molecules)
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    expected = outcome(module, x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    again = Readout([0] * n)
    again.load_state_dict(module.state_dict())
    copies = [copy.deepcopy(module), loaded, again]
    for other in copies:
        assert all(map(same_bits, outcome(other, x), expected))
    double = copy.deepcopy(module).double()
    assert double.idx.dtype == torch.int64
    for a, b in zip(outcome(double, x.double()), expected, strict=True):
        assert_close(a.float(), b, rtol=1e-5, atol=1e-5)
    meta = copy.deepcopy(module).to("meta")
    assert meta(x.to("meta")).is_meta
    back = meta.to_empty(device="cpu")
    back.load_state_dict(module.state_dict())
    assert all(map(same_bits, outcome(back, x), expected))
    copies[0].idx[0] = 2
    with pytest.raises(ValueError, match="sorted"):
        copies[0](x)
    assert all(map(same_bits, outcome(module, x), expected))


def test_a_module_is_compiled_and_compiled_again():
    """The compiled module sees edits of its idx; a copy is compiled by itself."""
    module = Readout([0, 0, 1, 2, 2])
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for molecules in ([0, 0, 1, 2, 2], [0, 1, 1, 1, 2]):
        module.idx.copy_(torch.tensor(molecules))
        for a, b in zip(outcome(compiled, x), outcome(module, x), strict=True):
            assert_close(a, b, rtol=1e-6, atol=1e-6)
    other = copy.deepcopy(module)
    other.idx.copy_(torch.tensor([0, 0, 0, 1, 2]))
    expected = outcome(other, x)
    other.compile(fullgraph=True, backend="aot_eager")
    for a, b in zip(outcome(other, x), expected, strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6)


@every_op
def test_functional_call(case):
    """Of one module, and vmapped over an ensemble: idx is a buffer among the others, stacked with them."""
    x = torch.tensor(1.3, dtype=torch.float64)

    def run(function):
        module = Pool(case, function)
        buffers = dict(module.named_buffers())

        def energy(parameters, x):
            return functional_call(module, (parameters, buffers), (x,))

        parameters = dict(module.named_parameters())
        gradients = grad(energy)(parameters, x)
        module(x).backward()
        for name, parameter in module.named_parameters():
            assert_close(gradients[name], parameter.grad)
        ensemble = [Pool(case, function, seed) for seed in range(3)]
        stacked = stack_module_state(ensemble)
        energies = vmap(lambda w, b: functional_call(module, (w, b), (x,)))(*stacked)
        assert_close(energies, torch.stack([m(x) for m in ensemble]).detach())
        return [*gradients.values(), hessian(energy, 1)(parameters, x), energies]

    for ours, theirs in zip(run(case), run(case.composed), strict=True):
        assert_close(ours, theirs)


def test_a_symbolic_trace_calls_the_public_functions():
    """`torch.fx.symbolic_trace` calls a module with proxies, which record functions of torch, and ours."""
    module = Readout([0, 0, 1, 2, 2])
    graph = torch.fx.symbolic_trace(module)
    ours = [n.target for n in graph.graph.nodes if getattr(n.target, "__module__", "") == segment_ops.__name__]
    assert [f.__name__ for f in ours] == ["segmented_rms_norm", "segmented_mul", "segmented_sum"]
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert all(map(same_bits, outcome(graph, x), outcome(module, x)))
    traced = torch.compile(graph, fullgraph=True, backend="aot_eager")
    assert_close(traced(x), module(x))


@every_op
def test_a_symbolic_trace_with_only_num_segments_traced(case):
    """The tensors are constants of the graph."""
    inputs = case.inputs(N, M)
    graph = torch.fx.symbolic_trace(lambda m: case(*inputs, IDX, m))
    assert any(n.target is getattr(segment_ops, case.op.name) for n in graph.graph.nodes)
    assert same_bits(graph(M), case(*inputs, IDX, M))


@every_op
def test_a_scripted_function(case):
    """TorchScript compiles calls of the public functions, also by keyword: value, gradient, saved and loaded."""
    name, labels = case.op.name, [a.name for a in case.op.args]
    keywords = ", ".join(f"{k}={k}" for k in labels)
    source = f"""
def function({", ".join(labels)}, idx, number: int):
    return {name}({", ".join(labels)}, idx, number).cos() + ops.{name}({keywords}, num_segments=number, idx=idx)
"""
    names = {name: getattr(segment_ops, name), "ops": segment_ops, "__name__": __name__}
    lines = source.splitlines(keepends=True)
    linecache.cache[f"<{name}>"] = (len(source), None, lines, f"<{name}>")
    exec(compile(source, f"<{name}>", "exec"), names)
    scripted = torch.jit.script(names["function"])
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    w = case.weights(N, M)
    inputs, expected = case.inputs(N, M, grad=True), case.inputs(N, M, grad=True)
    right = names["function"](*expected, IDX, M)
    gradients = torch.autograd.grad(right, expected, w)
    for program in (scripted, torch.jit.load(file)):
        for _ in range(3):  # the third call is optimised
            out = program(*inputs, IDX, M)
            assert same_bits(out.detach(), right.detach())
            for a, b in zip(torch.autograd.grad(out, inputs, w), gradients, strict=True):
                assert_close(a, b)  # TorchScript differentiates the cosine


def test_scripting_is_refused_by_name():
    """For an operation of a user's own launchers, which is a closure."""
    square = register_warp_op_chain("scripts::square", lambda x: x * x, lambda g, x: 2 * g * x)

    def function(x):
        return square(x)

    with pytest.raises(RuntimeError, match="torch.ops.scripts.square"):
        torch.jit.script(function)
    assert torch.jit.script(function_of_the_dispatcher)(torch.tensor([3.0])).tolist() == [9]


def function_of_the_dispatcher(x: torch.Tensor):
    return torch.ops.scripts.square(x)
