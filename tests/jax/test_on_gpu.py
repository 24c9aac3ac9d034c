# SPDX-License-Identifier: Apache-2.0
"""On a GPU: the bits of the CPU, in programs that XLA may record in CUDA graphs and replay."""

import jax
import jax.numpy as jnp
import pytest
from jax_battery import LENGTHS, cases, index, same_bits

GPUS = [d for d in jax.devices() if d.platform == "gpu"]
CPU = jax.devices("cpu")[0]

pytestmark = pytest.mark.skipif(not GPUS, reason="needs a GPU that JAX can use")


def derivatives(case, idx, m):
    """Value, gradients and the gradients of the weighted gradients: nothing but our operations, and sums of two."""

    def run(weights, second, *arrays):
        def gradients(weights, *arrays):
            return jax.vjp(lambda *a: case(*a, idx, m), *arrays)[1](weights)

        first, pull = jax.vjp(gradients, weights, *arrays)
        return case(*arrays, idx, m), first, pull(tuple(second))

    return jax.jit(run)


@cases(("float32", "float64"), widths=3)
@pytest.mark.parametrize("lengths", [LENGTHS["sizes"], (9000, 0, 31_000), LENGTHS["no elements"]], ids=len)
def test_bits_of_the_cpu(case, lengths):
    check_bits(case, lengths)


@cases(("float16", "bfloat16"), widths=1)
def test_bits_of_the_cpu_in_half_precision(case):
    check_bits(case, LENGTHS["sizes"])


def check_bits(case, lengths):
    idx, m = index(lengths), len(lengths)
    n = len(idx)
    inputs = (case.weights(n, m), case.inputs(n, m, seed=9), *case.inputs(n, m))
    expected, *found = [
        derivatives(case, jax.device_put(idx, device), m)(*jax.device_put(inputs, device)) for device in (CPU, GPUS[0])
    ]
    found += [derivatives(case, jax.device_put(idx, GPUS[0]), m)(*jax.device_put(inputs, GPUS[0]))]
    for result in found:
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert same_bits(a, b)


def test_replays_see_new_data():
    idx = jax.device_put(index((3, 0, 70)), GPUS[0])
    (case,) = [c for c in cases(("float32",), widths=1).args[1] if c.op.short == "rms_norm"]
    run = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c * 2, case(c, idx, 3)), x, None, length=5)[1])
    for seed in range(4):
        (x,) = case.inputs(73, 3, seed)
        out = run(jax.device_put(x, GPUS[0]))
        alone = jnp.stack([case(jax.device_put(x * 2.0**k, CPU), jax.device_put(idx, CPU), 3) for k in range(5)])
        assert same_bits(out, alone)
