# SPDX-License-Identifier: Apache-2.0
"""The programs of the user guides run, and do what the guides say."""

import importlib
import json
import linecache
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(guide):
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "userguide" / guide).read_text(), flags=re.S)


def run(source, names):
    """As from a file: Warp reads the source of kernels."""
    name = f"<guide {len(linecache.cache)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), names)
    return names


@pytest.fixture(scope="module")
def names():
    """What the guide's example defines."""
    return run("".join(blocks("warp_op_chain.md")), {"__name__": "guide"})


def test_example_of_an_operation_is_right(names):
    x = names["x"].detach()
    derivative = 1 - x.tanh() ** 2
    torch.testing.assert_close(names["force"], 2 * x.tanh() * derivative)
    second = 2 * derivative**2 - 4 * x.tanh() ** 2 * derivative
    expected = torch.zeros_like(x)
    expected[0] = second[0]
    torch.testing.assert_close(names["hessian_column"], expected, rtol=1e-5, atol=1e-6)


def test_example_of_an_operation_under_transforms(names):
    def loss(function):
        return lambda x: function(x).square().sum()

    switch, x = names["switch"], torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    close = torch.testing.assert_close
    close(torch.func.grad(loss(switch))(x), torch.func.grad(loss(torch.tanh))(x))
    close(torch.vmap(switch)(x), x.tanh())
    close(
        torch.func.jacrev(torch.func.jacrev(loss(switch)))(x[0]), torch.func.hessian(loss(torch.tanh))(x[0]),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    close(switch(x.t()), x.t().tanh())


def test_the_operation_itself_takes_twenty_lines():
    """Kernels are the user's own; what makes an operation of them is the rest."""
    (source, _) = blocks("warp_op_chain.md")
    lines = [line for line in source.split("def run(")[1].splitlines() if line.strip()]
    assert len(lines) <= 20


def test_graphs_example():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(ROOT / "examples" / "cuda_graphs.py")]
    found = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
    assert "saved, loaded and replayed with the same bits" in found and "training step" in found


def test_gpu_check_skips_clearly(tmp_path):
    """Without a GPU the script says so and succeeds."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run the script itself")
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable}
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh")]
    found = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
    assert "skipped: torch sees no CUDA device" in found
    assert "skipped" in (tmp_path / "gpu_check.log").read_text()


def test_digests_for_the_gpu_are_those_of_the_engine(monkeypatch):
    """`scripts/gpu_bits.py write` has to be run again when the engine's bits change on purpose."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    gpu_bits = importlib.import_module("gpu_bits")
    known = json.loads(gpu_bits.FILE.read_text())
    assert {"sum (3,) giant float32", "outer 3x3 supers bfloat16", "dot_add (3,) longer float64"} <= set(known)
    kept = {label: gpu_bits.LENGTHS[label] for label in ("short", "blocks")}
    monkeypatch.setattr(gpu_bits, "LENGTHS", kept)
    found = gpu_bits.digests("cpu", engine=True)
    assert len(found) > 200
    assert [key for key, value in found.items() if known[key] != value] == []


@pytest.mark.skipif(torch.__version__ < "2.9", reason="torch 2.8 does not trace autograd.grad")
def test_torch_guide_runs(tmp_path):
    """As a program of its own: Dynamo looks globals up in the module's namespace."""
    program = tmp_path / "guide.py"
    program.write_text("".join(blocks("torch.md")) + "\nassert gradient.abs().max() > 0\n")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, program], check=True, env=os.environ | {"PYTHONPATH": path})
