# SPDX-License-Identifier: Apache-2.0
"""What a program's stdout and stderr get from us: with PyTorch and JAX nothing of Warp, with Warp what Warp is set to.

Every program runs in a process and a kernel cache of its own, with few functions to compile.
"""

import shutil

import pytest
from native.process import start

SAY_AT_ONCE = """
    from segmentops import _building
    _building.notice.__wrapped__.__defaults__ = ("about 10 s", 0.0)
"""
FEW = """
    import dataclasses
    from segmentops.ops import table
    for name, op in table.OPERATIONS.items():
        if op.module == "core" and name not in ("sum", "broadcast"):
            table.OPERATIONS[name] = dataclasses.replace(op, module="left out")
"""
TORCH = """
    import torch
    from segmentops.torch.segment_ops import segmented_sum
    x, idx = torch.ones(5, requires_grad=True), torch.tensor([0, 0, 1, 1, 1])
"""
JAX = """
    import jax, jax.numpy as jnp
    from segmentops.jax.segment_ops import segmented_sum
    x, idx = jnp.ones(5), jnp.array([0, 0, 1, 1, 1])
"""
NO_ENGINE = """
    import pathlib
    from segmentops.native import _build
    _build.INCLUDE = pathlib.Path({include!r})
"""
# On the CPU, as the tests of these routes run them.
CUDA_OF_JAX = """
    import warp as wp
    from segmentops.jax import _cuda
    devices = _cuda.devices
    _cuda.devices = lambda: (devices(), (wp.get_device("cpu"),))[1]
    run = jax.jit(lambda x, idx: _cuda.call("sum", [x], idx, 2)[0])
"""
PROGRAMS = {
    "torch engine": TORCH + FEW + "    out = segmented_sum(x, idx, 2)\n    out.sum().backward()\n",
    "torch without an engine": TORCH + NO_ENGINE + "    out = segmented_sum(x, idx, 2)\n    out.sum().backward()\n",
    "torch kernels": TORCH
    + "    from segmentops.torch import _cuda\n    out = _cuda.kernel('sum')(x.detach(), idx, 2)\n",
    "jax engine": JAX + FEW + "    out = segmented_sum(x, idx, 2)\n",
    "jax without an engine": JAX + NO_ENGINE + "    out = segmented_sum(x, idx, 2)\n",
    "jax kernels": JAX + CUDA_OF_JAX + "    out = run(x, idx)\n",
}
CHECK = """
    import warp
    assert out.tolist() == [2, 3], out
    assert warp.config.log_level == warp.LOG_INFO
"""


def run(program, cache, **environment):
    """Its stdout and its stderr, by line."""
    process = start(program, log_level=None, WARP_CACHE_PATH=cache, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines(), err.splitlines()


@pytest.fixture
def broken(tmp_path):
    """Headers that do not compile."""
    from segmentops.native._build import INCLUDE

    folder = tmp_path / "include"
    shutil.copytree(INCLUDE, folder)
    with open(folder / "segment" / "vector.h", "a") as header:
        header.write("this is no C++\n")
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_other_frameworks_see_nothing_of_warp(name, tmp_path, broken):
    pytest.importorskip(name.split()[0])
    program = PROGRAMS[name].replace("{include!r}", repr(str(broken)))
    out, err = run(SAY_AT_ONCE + program + CHECK, tmp_path / "cache", JAX_PLATFORMS="cpu")
    assert out == []
    assert not any("Warp CUDA" in line or line.startswith(("Warp 1", "Module ")) for line in err), err
    said = [line for line in err if "compiling" in line and line.startswith("segmentops: ")]
    what = "segmentops: compiling the CPU code for segment operations, "
    assert len(said) == 1 and said[0].startswith(what), err
    if "without" not in name:
        assert err == said
        assert said[0] == what + ("about 10 s" if "engine" in name else "some seconds for each of them") + ", once"


def test_what_others_write_to_stderr_while_warp_starts_is_kept(capfd):
    import os

    from segmentops import _building

    with _building._without_driver_warning():
        os.write(2, b"first\nWarp CUDA warning: Could not find or load the NVIDIA CUDA driver.\nlast")
    os.write(2, b" line\n")
    assert capfd.readouterr().err == "first\nlast line\n"


WARP = """
    import segmentops.{module}
    import numpy as np
    import warp as wp
    wp.from_torch(__import__("torch").ones(3))      # needs Warp initialised
    from segmentops.warp import segmented_mul
    x, s = wp.ones(8, dtype=wp.float32, device="cpu"), wp.ones(1, dtype=wp.float32, device="cpu")
    segmented_mul(x[::2], s, wp.zeros(4, dtype=wp.int32, device="cpu"), x[1::2])
"""


@pytest.mark.parametrize("module", ["warp", "warp_backward"])
def test_importing_the_launchers_initialises_warp_as_the_user_has_set_it(module, tmp_path):
    """Users of Warp see its banner and what it loads, unless they said otherwise."""
    pytest.importorskip("torch")
    out, _ = run(WARP.format(module=module), tmp_path)
    assert out[0].startswith("Warp ") and "initialized" in out[0]
    assert any(line.startswith("Module segmentops.kernels.element") for line in out)
    quiet = "    import warp\n    warp.config.log_level = warp.LOG_WARNING\n"
    assert run(quiet + WARP.format(module=module), tmp_path)[0] == []
