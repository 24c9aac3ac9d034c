# SPDX-License-Identifier: Apache-2.0
"""Arrays on other devices than the first, and on several: the operations are those of one device."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax_battery import argnums, cases, index, loss, same_bits

import segmentops

LENGTHS = (3, 0, 4, 1)
M = len(LENGTHS)
IDX = index(LENGTHS)
N = len(IDX)
FLOAT32 = cases(("float32",), widths=1).args[1]


def derivatives(case):
    def run(idx, weights, *arrays):
        total = loss(case, weights, idx, M)
        return case(*arrays, idx, M), jax.grad(total, argnums(case))(*arrays)

    return run


@cases(("float32",), widths=1)
def test_sharded_elements(case):
    """A segment may lie on two devices; the axes are explicit, so the gradient is sharded as its array is."""
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))

    def shard(kind, array):
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec("i" if kind == "element" else None)))

    arrays, weights = case.inputs(N, M), case.weights(N, M)
    expected = jax.jit(derivatives(case))(IDX, weights, *arrays)
    with jax.set_mesh(mesh):
        placed = [shard(d.kind, a) for d, a in zip(case.op.args, arrays, strict=True)]
        idx = shard("element", IDX)
        out, gradients = jax.jit(derivatives(case))(idx, weights, *placed)
        eager = case(*placed, idx, M)
        batched = jax.vmap(lambda *a: case(*a, idx, M))(*[jnp.stack([a, 2 * a]) for a in placed])
    for a, b in zip(jax.tree.leaves((out, gradients)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)  # XLA adds up the loss
    assert same_bits(eager, expected[0]) and same_bits(batched[0], expected[0])
    for gradient, array in zip(gradients, placed, strict=True):
        assert jax.typeof(gradient) == jax.typeof(array)


@cases(("float32",), widths=1)
@pytest.mark.parametrize("shared", [True, False], ids=["idx shared", "idx batched"])
@pytest.mark.parametrize("before", [True, False], ids=["made before set_mesh", "made after"])
def test_sharded_samples(case, shared, before):
    """The axes are explicit: results and gradients are those of one device, and as `jax.ops` shards them."""
    mesh = jax.make_mesh((8,), ("b",), axis_types=(AxisType.Explicit,))
    idx = index(LENGTHS, padding=1)
    arrays = [jnp.stack([(k + 1) * a for k in range(16)]) for a in case.inputs(N + 1, M)]
    indices = idx if shared else jnp.stack([idx, jnp.minimum(idx + 1, M)] * 8)
    axes = (None if shared else 0, *(0 for _ in arrays))

    def make():
        placed = [jax.device_put(a, NamedSharding(mesh, PartitionSpec("b"))) for a in (indices + 0, *arrays)[shared:]]
        return [indices + 0, *placed] if shared else placed

    def results(op):
        one = jax.vmap(lambda idx, *a: op(*a, idx, M), axes)
        sample = lambda idx, *a: jax.grad(lambda *a: (op(*a, idx, M) ** 2).sum(), argnums(case))(*a)  # noqa: E731
        whole = lambda idx, *a: jax.grad(lambda *a: (one(idx, *a) ** 2).sum(), argnums(case))(*a)  # noqa: E731
        together = jax.jit(lambda *a: (one(*a), jax.vmap(sample, axes)(*a), whole(*a)))
        return [one, together]

    expected = [f(indices, *arrays) for f in results(case)]
    placed = make() if before else None
    with jax.set_mesh(mesh):
        placed = placed or make()
        found = [f(*placed) for f in results(case)]
        theirs = jax.eval_shape(lambda *a: [f(*a) for f in results(case.composed)], *placed)
    assert all(same_bits(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(a).sharding.spec == b.sharding.spec and b.sharding.spec[0] == "b"


@cases(("float32",), widths=1)
@pytest.mark.parametrize("axis", [0, 1])
def test_samples_and_elements_on_a_grid_of_devices(case, axis):
    """Samples lie on one axis of the mesh, what they hold on the other; without and with a mesh that is set."""
    mesh = jax.make_mesh((2, 4), ("b", "i"), axis_types=(AxisType.Explicit,) * 2)
    stack = lambda a: jnp.stack([(k + 1) * a for k in range(4)], axis)  # noqa: E731
    arrays = [stack(a) for a in case.inputs(N, M)]
    one = jax.vmap(lambda *a: case(*a, IDX, M), axis)
    grid = NamedSharding(mesh, PartitionSpec(*("b", "i") if axis == 0 else ("i", "b")))
    placed = [jax.device_put(a, grid) for a in arrays]
    gradient = lambda *a: jax.vjp(one, *a)[1](jnp.ones_like(one(*a)))  # noqa: E731
    expected = one(*arrays), gradient(*arrays)
    with jax.set_mesh(mesh):
        found = [jax.jit(lambda *a: (one(*a), gradient(*a)))(*placed), (one(*placed), gradient(*placed))]
    found.append((one(*placed), gradient(*placed)))
    for each in found:
        assert all(same_bits(a, b) for a, b in zip(jax.tree.leaves(each), jax.tree.leaves(expected), strict=True))
        assert jax.typeof(each[0]).sharding.spec[0] == "b"


@pytest.mark.parametrize("case", [c for c in FLOAT32 if c.op.short in ("mean", "max_norm", "matvec")], ids=str)
def test_other_devices(case):
    """One that is not the first, and all in one program: eight calls at a time."""
    arrays, weights = case.inputs(N, M), case.weights(N, M)
    expected = jax.tree.leaves(jax.jit(derivatives(case))(IDX, weights, *arrays))
    device = jax.devices()[5]
    found = jax.jit(derivatives(case))(*jax.device_put((IDX, weights, *arrays), device))
    for a, b in zip(jax.tree.leaves(found), expected, strict=True):
        assert same_bits(a, b) and a.devices() == {device}
    found = jax.pmap(derivatives(case))(*[jnp.stack([a] * 8) for a in (IDX, weights, *arrays)])
    assert all(same_bits(part, b) for a, b in zip(jax.tree.leaves(found), expected, strict=True) for part in a)


TWO_PROCESSES = """
import sys
import warp; warp.config.log_level = 30
import jax, numpy as np
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank = int(sys.argv[1])
jax.distributed.initialize("localhost:" + sys.argv[2], 2, rank)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from segmentops.jax.segment_ops import segmented_sum
mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
place = lambda a: jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("i")), a, (4,))
x, idx = place(np.float32([1, 2]) + rank), place(np.int32([[0, 0], [0, 2]][rank]))
total = lambda x, idx: segmented_sum(x, idx, 3)
parts = jax.shard_map(lambda *a: jax.lax.psum(total(*a), "i"), mesh=mesh,
                      in_specs=(PartitionSpec("i"),) * 2, out_specs=PartitionSpec())
print([np.asarray(f(x, idx)).tolist() for f in (total, jax.jit(total), jax.jit(parts))])
"""


def test_two_processes():
    """Each has half of the elements; nobody can look at all values of idx."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(segmentops.__file__).parents[1]), "XLA_FLAGS": ""}
    command = [sys.executable, "-c", TWO_PROCESSES]
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen([*command, str(rank), port], stdout=pipe, stderr=pipe, text=True, env=environment)
        for rank in range(2)
    ]
    for process in both:
        out, error = process.communicate(timeout=1200)
        assert process.returncode == 0, error
        assert out.strip().endswith(str([[5.0, 0.0, 3.0]] * 3))
