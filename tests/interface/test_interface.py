# SPDX-License-Identifier: Apache-2.0
"""The published interface: its names are ours, and programs written for it run unchanged."""

import importlib
import inspect
import warnings

import pytest
import warp as wp

import nvalchemiops

SIX = ["segmented_dot", "segmented_matvec", "segmented_mean", "segmented_mul", "segmented_rms_norm", "segmented_sum"]
# Of the interface: where its names are implemented.
HANDED_ON = {
    "nvalchemiops.torch": "segmentops.torch",
    "nvalchemiops.torch.segment_ops": "segmentops.torch",
    "nvalchemiops.jax": "segmentops.jax",
    "nvalchemiops.jax.segment_ops": "segmentops.jax",
    "nvalchemiops.segment_ops": "segmentops.warp",
    "nvalchemiops.segment_ops_backward": "segmentops.warp_backward",
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_names_are_handed_on(name):
    ours, theirs = importlib.import_module(HANDED_ON[name]), importlib.import_module(name)
    assert theirs.__all__
    assert all(getattr(theirs, n) is getattr(ours, n) for n in theirs.__all__)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_six_operations(framework):
    module = importlib.import_module(f"nvalchemiops.{framework}.segment_ops")
    assert module.__all__ == SIX
    expected = {"segmented_matvec": ["v", "m"], "segmented_mul": ["x", "y"], "segmented_dot": ["x", "y"]}
    for name in SIX:
        parameters = list(inspect.signature(getattr(module, name)).parameters)
        assert parameters == [*expected.get(name, ["x"]), "idx", "num_segments"]


def test_launchers_keep_their_argument_orders():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    segment_ops = importlib.import_module("nvalchemiops.segment_ops")
    segment_ops_backward = importlib.import_module("nvalchemiops.segment_ops_backward")
    assert parameters(segment_ops.segmented_axpby) == ["out", "a", "x", "b", "y", "idx"]
    assert parameters(segment_ops.compute_ept) == ["N", "sm_count", "is_vec3"]
    assert parameters(segment_ops_backward.segmented_rms_norm_double_backward) == [
        "gg_x", "x", "g_out", "inv_norm", "counts", "idx", "M", "grad_x_extra", "grad_g_out_extra",
    ]  # fmt: skip


def test_program_on_tensors():
    names: dict = {}
    exec(
        """
import torch
import nvalchemiops.torch
from nvalchemiops.torch.segment_ops import segmented_matvec, segmented_mul, segmented_rms_norm, segmented_sum

positions = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 3]], requires_grad=True)
batch_idx = torch.tensor([0, 0, 1], dtype=torch.int32)
cells = torch.eye(3).expand(2, 3, 3).contiguous()
wrapped = segmented_matvec(v=positions, m=cells, idx=batch_idx, num_segments=2)
scaled = segmented_mul(x=wrapped, y=torch.tensor([2.0, 3.0]), idx=batch_idx, num_segments=2)
energy = segmented_sum(scaled.pow(2).sum(dim=1), batch_idx, 2)
(forces,) = torch.autograd.grad(energy.sum(), positions)
radius = nvalchemiops.torch.segmented_rms_norm(positions, batch_idx, 2)
""",
        names,
    )
    assert names["energy"].tolist() == [20.0, 81.0]
    assert names["forces"].tolist() == [[8.0, 0, 0], [0, 16.0, 0], [0, 0, 54.0]]
    assert names["radius"].tolist() == pytest.approx([2.5**0.5, 3.0])


def test_program_on_arrays_of_jax():
    names: dict = {}
    exec(
        """
import jax
import jax.numpy as jnp
from nvalchemiops.jax.segment_ops import segmented_dot, segmented_mean

x = jnp.array([[1.0, 0, 0], [0, 2, 0], [0, 0, 3]])
batch_idx = jnp.array([0, 0, 1], dtype=jnp.int32)
energy = jax.jit(lambda x: segmented_dot(x=x, y=x, idx=batch_idx, num_segments=2))
gradient = jax.grad(lambda x: energy(x).sum())(x)
centre = segmented_mean(x, batch_idx, num_segments=2)
""",
        names,
    )
    assert names["energy"](names["x"]).tolist() == [5.0, 9.0]
    assert names["gradient"].tolist() == [[2.0, 0, 0], [0, 4.0, 0], [0, 0, 6.0]]
    assert names["centre"].tolist() == [[0.5, 1.0, 0], [0, 0, 3.0]]


def test_program_on_warp_arrays():
    names: dict = {}
    exec(
        """
import warp as wp

import nvalchemiops
from nvalchemiops.segment_ops import segmented_mul, segmented_sum
from nvalchemiops.segment_ops_backward import segmented_mul_backward

x = wp.array([[1, 0, 0], [0, 2, 0], [0, 0, 3]], dtype=wp.vec3f, device="cpu")
y = wp.array([2.0, 3.0], dtype=wp.float32, device="cpu")
idx = wp.array([0, 0, 1], dtype=wp.int32, device="cpu")
out, totals = wp.empty_like(x), wp.empty(2, dtype=wp.vec3f, device="cpu")
segmented_mul(x, y, idx, out)
segmented_sum(out, idx=idx, out=totals)
grad_x, grad_y = wp.empty_like(x), wp.empty_like(y)
segmented_mul_backward(g_out=out, x=x, y=y, idx=idx, M=2, grad_x=grad_x, grad_y=grad_y)
""",
        names,
    )
    assert names["totals"].numpy().tolist() == [[2.0, 4.0, 0], [0, 0, 9.0]]
    assert names["grad_y"].numpy().tolist() == [10.0, 27.0]
    assert wp.config.log_level == 30


def test_nothing_is_implemented_there():
    for name in ["nvalchemiops", *HANDED_ON]:
        module = importlib.import_module(name)
        own = [n for n, o in vars(module).items() if inspect.isroutine(o) and o.__module__.startswith("nvalchemiops")]
        assert own == ["_warn_of_other_distributions"] * (module is nvalchemiops)
    assert nvalchemiops.__version__ == importlib.import_module("segmentops").__version__


def namesake(folder, record):
    info = folder / "nvalchemi_other_ops-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(record)
    return folder


def test_warns_of_another_distribution_with_our_package(tmp_path):
    namesake(tmp_path, "nvalchemi_other_ops-1.0.dist-info/METADATA,,\nnvalchemiops/__init__.py,,\n")
    with pytest.warns(UserWarning, match="nvalchemi_other_ops-1.0 also ships the package"):
        nvalchemiops._warn_of_other_distributions(tmp_path)


def test_does_not_warn_of_itself_or_of_unrelated_distributions(tmp_path):
    namesake(tmp_path, "something_else/__init__.py,,\n")
    own = tmp_path / "segmentops_nvalchemiops-1.0.dist-info"
    own.mkdir()
    (own / "RECORD").write_text("nvalchemiops/__init__.py,,\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nvalchemiops._warn_of_other_distributions(tmp_path)
