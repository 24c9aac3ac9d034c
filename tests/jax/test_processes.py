# SPDX-License-Identifier: Apache-2.0
"""What crosses processes: exported programs, the compilation cache; and JAX alone, without torch."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax_battery import cases, index, same_bits

import segmentops
from segmentops.jax import ffi_targets
from segmentops.jax.segment_ops import segmented_max_norm, segmented_mul, segmented_rms_norm, segmented_sum

SOURCE = pathlib.Path(segmentops.__file__).parents[1]
X = jnp.linspace(-1, 2, 12, dtype="float32").reshape(4, 3)
IDX = jnp.array([0, 0, 1, 3], jnp.int32)


def python(code, **environment):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    code = "import warp; warp.config.log_level = 30\n" + code  # its banner goes to stdout
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def model(x, idx):
    norms = segmented_rms_norm(x, idx, 4) + segmented_max_norm(x, idx, 4)
    return segmented_sum(segmented_mul(x, norms, idx, 4), idx, 4)


def energy_and_forces(x, idx):
    return jax.value_and_grad(lambda x: (model(x, idx) ** 3).sum())(x)


def test_export_round_trip_in_a_second_process(tmp_path):
    pytest.importorskip("flatbuffers")  # JAX serialises with it
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in ffi_targets()]
    exported = export.export(jax.jit(energy_and_forces), disabled_checks=checks)(X, IDX)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arguments.npz", x=X, idx=IDX)
    python(f"""
import jax, numpy as np
from jax import export
from segmentops.jax import ffi_targets
ffi_targets()
program = export.deserialize(open({str(tmp_path / "program")!r}, "rb").read())
arguments = np.load({str(tmp_path / "arguments.npz")!r})
energy, forces = program.call(arguments["x"], arguments["idx"])
np.savez({str(tmp_path / "results.npz")!r}, energy=energy, forces=forces)
""")
    results = np.load(tmp_path / "results.npz")
    energy, forces = jax.jit(energy_and_forces)(X, IDX)
    assert np.array_equal(results["energy"], energy) and np.array_equal(results["forces"], forces)
    assert np.abs(forces).max() > 0.1


@cases(("float64",), widths=1)
def test_export_with_symbolic_sizes(case):
    """One program for every number of elements, segments and samples: the engine's, with the same bits."""
    pytest.importorskip("flatbuffers")
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in ffi_targets()]
    b, n, m = export.symbolic_shape("b, n, m")

    def derivatives(idx, like, *arrays):
        """Value, gradients and their tangents of each sample; `like` says how many segments there are."""

        def first(*a):
            out, pull = jax.vjp(lambda *a: case(*a, idx, like.shape[0]), *a)
            return pull(jnp.ones_like(out))

        return case(*arrays, idx, like.shape[0]), first(*arrays), jax.jvp(first, arrays, arrays)[1]

    axes = (0, None, *(0 for _ in case.op.args))
    run = jax.jit(jax.vmap(derivatives, in_axes=axes))
    shapes = [a.shape(n, m, case.width) for a in case.op.args]
    types = [jax.ShapeDtypeStruct((b, *shape), case.dtype) for shape in shapes]
    exported = export.export(run, disabled_checks=checks)(
        jax.ShapeDtypeStruct((b, n), "int32"), jax.ShapeDtypeStruct((m,), "int32"), *types
    )
    program = export.deserialize(exported.serialize())
    text = program.mlir_module()
    assert "@segmentops_segmented_" in text and "scatter" not in text
    for lengths in ((3, 0, 2), (40, 1)):
        count, elements = len(lengths), sum(lengths)
        arrays = zip(case.inputs(elements, count), case.inputs(elements, count, seed=3), strict=True)
        arguments = (
            jnp.stack([index(lengths), index((elements,))]),
            jnp.zeros(count, jnp.int32),
            *(jnp.stack(pair) for pair in arrays),
        )
        results = [jax.tree.leaves(f(*arguments)) for f in (program.call, run)]
        assert all(same_bits(got, expected) for got, expected in zip(*results, strict=True))


def test_export_without_the_promise_is_refused():
    with pytest.raises(ValueError, match="segmentops_segmented"):
        export.export(jax.jit(energy_and_forces))(X, IDX)


CACHED = """
import jax, jax.numpy as jnp
from segmentops.jax.segment_ops import segmented_sum
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
f = jax.jit(jax.grad(lambda x, i: (segmented_sum(x, i, 3) ** 2).sum()))
print(f(jnp.arange(4.), jnp.array([0, 0, 1, 2], jnp.int32)).tolist())
"""


def test_compilation_cache_in_a_second_process(tmp_path):
    first = python(CACHED, JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    entries = sorted(p.name for p in tmp_path.iterdir() if p.name.endswith("-cache"))
    assert first == ["[2.0, 2.0, 4.0, 6.0]"] and entries
    assert python(CACHED, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) == first
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.endswith("-cache")) == entries


def test_without_torch():
    """Neither imported nor needed, threads included; float64 off."""
    out = python("""
import sys, threading, time
sys.modules["torch"] = None
import jax, jax.numpy as jnp, numpy as np
from segmentops.jax.segment_ops import segmented_sum, segmented_rms_norm
from segmentops.native import _xla
build, built = _xla.handlers, []
def handlers(table):
    built.append(table)
    time.sleep(0.1)
    return build(table)
_xla.handlers = handlers
first = [threading.Thread(target=lambda k=k: segmented_sum(jnp.ones(k), jnp.zeros(k, jnp.int32), 1)) for k in range(8)]
[t.start() for t in first]
[t.join() for t in first]
print(built)
idx = jnp.asarray(np.repeat(np.arange(100), 10_000), jnp.int32)
ones = jnp.full(1_000_000, 0.1, jnp.float32)
print(np.unique(segmented_sum(ones, idx, 100)).tolist() == [np.float32(np.float64(np.float32(0.1)) * 10_000)])
print(jax.jit(jax.grad(lambda x: segmented_rms_norm(x, idx, 100)[0]))(ones)[:1])
print([name for name in sys.modules if name.split(".")[0] == "torch" and sys.modules[name]])
""")
    assert out[0] == "['core']"  # by the first of eight calls at a time
    assert out[1] == "True" and out[3] == "[]"


def test_torch_without_jax():
    pytest.importorskip("torch")
    out = python("""
import sys
sys.modules["jax"] = sys.modules["jaxlib"] = None
import torch
from segmentops.torch.segment_ops import segmented_rms_norm
x = torch.ones(1_000_000, requires_grad=True)
idx = torch.arange(100, dtype=torch.int32).repeat_interleave(10_000)
out = segmented_rms_norm(x, idx, 100)
out.sum().backward()
print(out.unique().tolist(), torch.allclose(x.grad, torch.tensor(1e-4)))
""")
    assert out == ["[1.0] True"]


def test_int64_idx_does_not_narrow_without_x64():
    python("""
import numpy as np, jax, jax.numpy as jnp
from segmentops.ops.table import OPERATIONS
from segmentops.jax._lowering import on_xla
from segmentops.jax.segment_ops import segmented_dot, segmented_mul, segmented_sum
try:
    segmented_sum(jnp.ones(2), np.array([0, 2**32 + 1]), 2)
except ValueError as error:
    assert "range" in str(error)
else:
    raise SystemExit("narrowed")
for idx, expected in (([0, 2**32 + 1], [1, 0]), ([-2**33, 1], [0, 1])):  # where nothing is checked: no segment
    assert jax.jit(lambda x: segmented_sum(x, np.array(idx), 2))(jnp.ones(2)).tolist() == expected
    with jax.enable_x64(True):
        wide = jnp.asarray(np.array([idx]))
    ones = jnp.ones((1, 2))
    for batch in (np.array([idx]), wide):
        assert jax.vmap(lambda x, i: segmented_sum(x, i, 2))(ones, batch).tolist() == [expected]
        assert jax.vmap(lambda i: segmented_dot(ones[0], ones[0], i, 2))(batch).tolist() == [expected]
        square = lambda x, i: segmented_dot(x, x, i, 2).sum()
        assert jax.vmap(jax.grad(square))(ones, batch).tolist() == [[2 * e for e in expected]]
    f = lambda x, i: segmented_mul(x, x, i, 2)
    assert jax.jit(jax.vmap(f))(ones, wide).tolist() == [expected]
    assert jax.jit(lambda x, i: on_xla(OPERATIONS["sum"])(x, i, m=2)[0])(ones[0], wide[0]).tolist() == expected
assert segmented_mul(jnp.ones(2), np.ones(2), np.array([0, 1]), 2).dtype == "float32"  # NumPy's float64 is, too
print(segmented_sum(jnp.ones(2), np.array([0, 1]), 2))
""")


FORGET = """
import gc, sys
def forget():
    for name in [n for n in sys.modules if n.split(".")[0] == "segmentops"]:
        del sys.modules[name]
    gc.collect()
"""


def test_a_second_import():
    """As a notebook makes it: programs compiled before and after run, in every table, and nothing is built twice."""
    out = python(
        FORGET
        + """
import jax, jax.numpy as jnp
idx, x = jnp.array([0, 0, 1], jnp.int32), jnp.arange(3.0)
def program(dtype, m):
    from segmentops.jax.segment_ops import segmented_rms_norm, segmented_sum
    total = lambda x: (segmented_sum(x, idx, m) ** 2).sum() + segmented_rms_norm(x, idx, m).sum()
    return jax.jit(jax.grad(total)).lower(x.astype(dtype)).compile()
def run(f, dtype):
    return f(x.astype(dtype)).astype("float32").tolist()
before = program("float32", 2)
from segmentops.native import load
load().warmup()
forget()
jax.clear_caches()
gc.collect()
from segmentops.native import load
half = program("float16", 2)  # which builds another table first
load().warmup()
after = program("float32", 3)
print(run(before, "float32"))
print(run(after, "float32"))
print(run(half, "float16"))
"""
    )
    assert out[0] == out[1] == "[2.0, 2.707106828689575, 5.0]" and out[2] == "[2.0, 2.70703125, 5.0]"


def test_eager_padding_is_named_once():
    """Not where it is usual: in compiled code, under disable_jit, in a batch of indices."""
    lines = python("""
import warnings
import jax, jax.numpy as jnp, numpy as np
from segmentops.jax.segment_ops import segmented_mean, segmented_mul, segmented_sum
x, idx = jnp.ones(5), jnp.array([0, 1, 2, 3, 3], jnp.int32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    jax.jit(lambda x: segmented_sum(x, idx, 3))(x)
    jax.vmap(lambda idx: segmented_sum(x, idx, 3))(idx[None])
    segmented_sum(x, idx, 4)
    with jax.disable_jit():
        segmented_sum(x, idx, 3)
    print(len(caught))
    segmented_sum(x, idx, 3)  # whose values have been looked at
    for again in (idx, idx + 0, np.asarray(idx)):
        segmented_mean(x, again, 3)
        jax.grad(lambda x: segmented_mul(x, x[:3], again, 3).sum())(x)
print(len(caught), caught[0].category.__name__, caught[0].filename)
print(caught[0].message)
""")
    assert lines[:2] == ["0", "1 UserWarning <string>"]
    assert "segmented_sum: 2 of 5 elements have idx = num_segments = 3" in lines[2] and "num_segments is 4" in lines[2]


BREAK = """
from segmentops.native import NativeBuildError, _xla
def handlers(table): raise NativeBuildError(f"the compiler of {table} is on holiday")
_xla.handlers = handlers
"""

ON_XLA = """
import warnings
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from segmentops.jax import ffi_targets, segment_ops as so
x, y = jnp.linspace(-1, 2, 12).reshape(4, 3), jnp.arange(1., 5)
idx = jnp.array([0, 0, 1, 3], jnp.int32)
a = jnp.arange(24.).reshape(4, 3, 2)
def outs(x, y, a, idx):
    return [so.segmented_sum(x, idx, 4), so.segmented_mean(x, idx, 4), so.segmented_dot(x, x + 1, idx, 4),
            so.segmented_rms_norm(x, idx, 4), so.segmented_max_norm(x, idx, 4), so.segmented_mul(x, y, idx, 4),
            so.segmented_matvec(x, a, idx, 4)]
total = lambda x, y, a, idx: sum((jnp.sin(o) * jnp.arange(o.size).reshape(o.shape)).sum() for o in outs(x, y, a, idx))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = (outs(x, y, a, idx), jax.jit(jax.grad(total, (0, 1, 2)))(x, y, a, idx),
             jax.jit(jax.hessian(total))(x, y, a, idx),
             jax.jit(outs)(x, y, a, idx.at[0].set(-3).at[3].set(7)))
    print(len(ffi_targets()))
print([str(w.message) for w in caught if "segmentops" in str(w.message)])
np.savez(PATH, *jax.tree.leaves(found))
"""


def test_without_the_native_code_it_warns_once_and_runs_on_xla(tmp_path):
    paths = [str(tmp_path / "fallback.npz"), str(tmp_path / "native.npz")]
    targets, warned = python(BREAK + ON_XLA.replace("PATH", repr(paths[0])))
    assert targets == "0" and warned.count("segmentops") == 1 and "the compiler of core is on holiday" in warned
    targets, warned = python(ON_XLA.replace("PATH", repr(paths[1])))
    assert int(targets) > 40 and warned == "[]"
    mine, theirs = map(np.load, paths)
    for name in theirs.files:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_was_forked_while_handlers_were_registered():
    """JAX itself does not promise to work there, but compiling a table must not wait for a thread that is not."""
    (code,) = python("""
import os, signal, threading
from segmentops import _building
from segmentops.jax import _lowering
from segmentops.native import _xla
held = threading.Event()
def hold(table):
    held.set()
    threading.Event().wait(60)
handlers, _xla.handlers = _xla.handlers, hold
threading.Thread(target=_lowering.register, args=("core",), daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    _xla.handlers = lambda table: {}
    _lowering.register("core")
    with _building.building():
        os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert code == "0"
