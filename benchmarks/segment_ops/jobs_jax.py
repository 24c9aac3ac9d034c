# SPDX-License-Identifier: Apache-2.0
"""The benchmark's cells on JAX arrays: every job is one program under `jax.jit`, with all arrays as arguments.

`mul_chain` is `mul` between element-wise operations: XLA fuses those with its own gather into one loop, but nothing
with a call of ours.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from cells import Cell, Jobs  # noqa: E402
from jax import Array  # noqa: E402
from rivals_jax import RIVALS  # noqa: E402

from nvalchemiops.jax import segment_ops as ours  # noqa: E402


def chain(mul: Callable[..., Array]) -> Callable[..., Array]:
    def mul_chain(x: Array, y: Array, idx: Array, m: int) -> Array:
        z = mul(x * x + 1, y, idx, m)
        return z / (1 + z * z)

    mul_chain.__name__ = f"chain around {mul.__name__}"
    return mul_chain


OURS = {name: getattr(ours, "segmented_" + name) for name in RIVALS} | {"mul_chain": chain(ours.segmented_mul)}
ALL_RIVALS = RIVALS | {"mul_chain": [chain(rival) for rival in RIVALS["mul"]]}
OPERATIONS = tuple(ALL_RIVALS)


def about(device: str) -> str:
    return f"{device}, jax {jax.__version__}"


def arrays(cell: Cell, device: str) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(cell.dtype) for shape in cell.shapes()]
    idx = np.sort(rng.integers(0, cell.segments, cell.n)).astype(np.int32)
    place = jax.devices(device)[0]
    return [jax.device_put(x, place) for x in inputs], jax.device_put(idx, place)


def job(function: Callable[..., Array], order: str, inputs: list[Array], idx: Array, m: int) -> Callable[[], object]:
    """A call without arguments that does what the order says, and waits for the result."""

    def gradients(cotangent: Array, *leaves: Array, idx: Array) -> tuple[Array, tuple[Array, ...]]:
        out, pull = jax.vjp(lambda *leaves: function(*leaves, idx, m), *leaves)
        return out, pull(cotangent)

    def second(moving: list[Array], cotangent: Array, *leaves: Array, idx: Array) -> object:
        first, pull = jax.vjp(lambda *a: gradients(*a, idx=idx)[1], cotangent, *leaves)
        return first, pull(tuple(moving))

    cotangent = jnp.cos(function(*inputs, idx, m))
    moving = [jnp.sin(x) for x in inputs]
    if order == "forward":
        run, arguments = jax.jit(lambda *leaves, idx: function(*leaves, idx, m)), inputs
    elif order == "backward":
        run, arguments = jax.jit(gradients), [cotangent, *inputs]
    else:
        run, arguments = jax.jit(second), [moving, cotangent, *inputs]
    return lambda: jax.block_until_ready(run(*arguments, idx=idx))


def jobs(cell: Cell, device: str) -> Jobs:
    inputs, idx = arrays(cell, {"cuda": "gpu"}.get(device, device))
    function, m = OURS[cell.operation], cell.segments
    largest = max([*inputs, function(*inputs, idx, m)], key=lambda a: a.size)
    copy = jax.jit(jnp.copy)
    return Jobs(
        job(function, cell.order, inputs, idx, m),
        {rival.__name__: job(rival, cell.order, inputs, idx, m) for rival in ALL_RIVALS[cell.operation]},
        lambda: jax.block_until_ready(copy(largest)),
        None,
        lambda: None,
    )
