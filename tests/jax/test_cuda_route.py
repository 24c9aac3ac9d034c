# SPDX-License-Identifier: Apache-2.0
"""What runs on CUDA, seen on the CPU: no GPU is needed.

The very functions of the CUDA lowering are called from programs for the CPU, where they run Warp's kernels, serial ones
or the thread blocks of CUDA as fibers, and must give the engine's bits.
"""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax import export
from jax_battery import index, same_bits
from oracles import positions

import segmentops
from segmentops.jax import _cuda, _lowering, _primitives
from segmentops.jax._arguments import dtype_of
from segmentops.jax.segment_ops import segmented_rms_norm, segmented_sum
from segmentops.kernels import launch
from segmentops.ops.table import OPERATIONS

every_operation = pytest.mark.parametrize("name", OPERATIONS)

LENGTHS = {
    "mixed": (0, 7, 8, 9, 0, 1, 64, 65, 3, 200, 0),
    "long": (3, 5000, 1),
    "no elements": (0, 0, 0),
}
EXTENTS = {"scalars": ((), ()), "vectors": ((3,), (3,)), "wide": ((2, 5), ()), "rectangle": ((2,), (4,))}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr(_cuda, "devices", lambda: (wp.get_device("cpu"),))


@pytest.fixture(params=["kernels", "fibers"])
def route(request, monkeypatch):
    if request.param == "fibers":
        monkeypatch.setattr(launch, "cooperative_on_cpu", True)
        monkeypatch.setattr(wp.config, "enable_cpu_blocks", True)


def operands(name, idx, m, extent, dtype):
    """Random operands of magnitudes that make the order of additions visible; by-products that fit them."""
    rng = np.random.default_rng(0)
    dims = {"n": (len(idx),), "m": (m,), "k": extent[0], "j": extent[1]}
    found = {}
    for operand in OPERATIONS[name].operands:
        shape = [d for letter in (operand.lead, *operand.trail) for d in dims[letter]]
        found[operand.name] = jnp.asarray(rng.normal(size=shape) * 10.0 ** rng.integers(-4, 5, shape), dtype)
        if operand.dtype:
            at = positions(np.asarray(idx), m, shape[1:])
            found[operand.name] = jnp.asarray(at, dtype_of(operand, dtype, len(idx)))
    if "inv" in found:
        found["inv"] = _primitives.bind("rms_norm", found["x"], idx=idx, m=m)[1]
    return list(found.values())


def check(name, idx, m, extent, dtype):
    arrays = operands(name, idx, m, extent, dtype)
    expected = _primitives.PRIMITIVES[name].bind(*arrays, idx, m=m)
    got = jax.jit(lambda *a: _cuda.call(name, a[:-1], a[-1], m))(*arrays, idx)
    for a, b in zip(got, expected, strict=True):
        assert same_bits(a, b), (name, extent)


@every_operation
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_bits_of_the_engine(name, dtype, lengths, route):
    extents = [e for label, e in EXTENTS.items() if not OPERATIONS[name].matrices or label in ("vectors", "rectangle")]
    for k, extent in enumerate(extents if len(lengths) > 3 else extents[:2]):
        check(name, index(lengths, ("int32", "int64")[k % 2]), len(lengths), extent, dtype)


@every_operation
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bits_of_half_precision(name, dtype, route):
    check(name, index(LENGTHS["mixed"]), 11, EXTENTS["rectangle" if OPERATIONS[name].matrices else "vectors"], dtype)


@every_operation
def test_padding_and_no_segments(name):
    check(name, jnp.asarray([-9, -1, 0, 0, 2, 3, 2**30], jnp.int32), 3, ((3,), (3,)), "float32")
    check(name, jnp.zeros(0, jnp.int32), 0, ((3,), (3,)), "float32")
    check(name, jnp.zeros(4, jnp.int32), 2, ((0,), (2,)), "float32")


def test_a_program_for_cuda_calls_the_kernels():
    idx = index((3, 0, 2))
    function = jax.jit(jax.grad(lambda x: segmented_rms_norm(segmented_sum(x, idx, 3), idx[:3], 3).sum()))
    traced = function.trace(jnp.ones((5, 3), "float32"))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for name in ("sum", "rms_norm", "rms_norm_backward", "broadcast"):
        assert f"segmented_{name}_float32_int32" in text
    assert "scatter" not in text


def test_without_a_device_it_says_so_and_uses_xla(monkeypatch):
    monkeypatch.setattr(_cuda, "devices", lambda: ())
    monkeypatch.setattr(_lowering, "_warned", set())
    idx = index((3, 0, 2))
    traced = jax.jit(lambda x: segmented_sum(x, idx, 3)).trace(jnp.ones(5, "float32"))
    with pytest.warns(UserWarning, match="no CUDA device.*driver for CUDA 13"):
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "scatter" in text and "_float32_int32" not in text


def test_what_the_kernels_do_not_take_runs_on_xla_and_says_so(monkeypatch):
    monkeypatch.setattr(_lowering, "_warned", set())
    function = jax.jit(lambda x, idx: segmented_sum(x, idx, 3))

    def types(size):
        shape = export.symbolic_shape(f"{size}, 1024")
        return jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape[:1], "int32")

    assert "scatter" not in function.trace(*types(2**20)).lower(lowering_platforms=("cuda",)).as_text()
    with pytest.warns(UserWarning, match=r"2\*\*31 scalars"):
        assert "scatter" in function.trace(*types(2**21)).lower(lowering_platforms=("cuda",)).as_text()
    with pytest.warns(UserWarning, match="symbolic"):
        assert "scatter" in export.export(function, platforms=["cuda"])(*types("n")).mlir_module()


def test_no_call_allocates_or_loads(monkeypatch):
    """What XLA records in a CUDA graph: the memory is XLA's, the kernels are there before the first call."""
    idx, m = index(LENGTHS["long"]), 3
    arrays = operands("rms_norm_double_backward", idx, m, ((3,), ()), "float32")
    compiled = jax.jit(lambda *a: _cuda.call("rms_norm_double_backward", a, idx, m)).lower(*arrays).compile()

    def refuse(*_args, **_kwargs):
        raise AssertionError("a call must not")

    monkeypatch.setattr(wp, "empty", refuse)
    monkeypatch.setattr(wp.Module, "_compile", refuse)
    got = compiled(*arrays)
    assert np.isfinite(got[0]).all()


# Every op under transforms, values to second order, in a process where the CPU takes the lowering of CUDA.
PROGRAM = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import warp as wp
wp.config.log_level = 30
from jax.interpreters import mlir
from segmentops.jax import _cuda, _lowering, _primitives
from segmentops.ops.table import OPERATIONS
if sys.argv[2] == "kernels":
    _cuda.devices = lambda: (wp.get_device("cpu"),)
    for name, op in OPERATIONS.items():
        lower = mlir.lower_fun(_lowering.on_cuda(op), multiple_results=True)
        mlir.register_lowering(_primitives.PRIMITIVES[name], lower, platform="cpu")
from segmentops.jax import segment_ops as so
x, y, idx = jnp.linspace(-1, 2, 18).reshape(6, 3), jnp.arange(1., 5), jnp.array([0, 0, 1, 3, 3, 4], jnp.int32)
a = jnp.arange(24.).reshape(4, 3, 2)
ops = [lambda x, i: so.segmented_sum(x, i, 4), lambda x, i: so.segmented_mean(x, i, 4),
       lambda x, i: so.segmented_dot(x, x[::-1], i, 4), lambda x, i: so.segmented_rms_norm(x, i, 4),
       lambda x, i: so.segmented_max_norm(x, i, 4), lambda x, i: so.segmented_mul(x, y * x.sum(), i, 4),
       lambda x, i: so.segmented_matvec(x, a * x.sum(), i, 4), lambda x, i: so.segmented_max(x, i, 4)]
found = []
for op in ops:
    def total(x, i):
        out = op(x, i) ** 3
        return (out * jnp.arange(1., 1 + out.size).reshape(out.shape)).sum()
    found += [jax.jit(op)(x, idx), jax.grad(total)(x, idx), jax.jit(jax.hessian(total))(x, idx)]
    found.append(jax.jit(jax.vmap(jax.grad(total)))(jnp.stack([x, 2 * x]), jnp.stack([idx, idx * 0])))
    found.append(jax.lax.scan(lambda c, _: (c + jax.grad(total)(c, idx) * 1e-9, op(c, idx)), x, None, length=3))
    found.append(jax.jit(jax.jvp, static_argnums=0)(lambda x: jax.grad(total)(x, idx), (x,), (x,)))
np.savez(sys.argv[1], *jax.tree.leaves(found))
print(len(_cuda.callable_of.cache_info() and found), _cuda.callable_of.cache_info().currsize)
"""


def test_jit_grad_and_scan_on_the_kernels(tmp_path):
    files = []
    for route in ("kernels", "engine"):
        files.append(tmp_path / f"{route}.npz")
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(segmentops.__file__).parents[1])}
        command = [sys.executable, "-c", PROGRAM, str(files[-1]), route]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
        assert done.returncode == 0, done.stderr
        results, callables = map(int, done.stdout.split()[-2:])
        assert results == 6 * 8 and (callables > 12 if route == "kernels" else callables == 0)
    mine, theirs = map(np.load, files)
    for name in theirs.files:
        assert same_bits(mine[name], theirs[name]), name
