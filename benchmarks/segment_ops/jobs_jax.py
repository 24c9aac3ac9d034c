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
import timing  # noqa: E402
from cells import Cell, Job, Jobs  # noqa: E402
from jax import Array  # noqa: E402
from rivals_jax import RIVALS  # noqa: E402

from segmentops.jax import segment_ops as ours  # noqa: E402


def chain(mul: Callable[..., Array]) -> Callable[..., Array]:
    def mul_chain(x: Array, y: Array, idx: Array, m: int) -> Array:
        z = mul(x * x + 1, y, idx, m)
        return z / (1 + z * z)

    mul_chain.__name__ = f"chain around {mul.__name__}"
    return mul_chain


OURS = {name: getattr(ours, "segmented_" + name) for name in RIVALS} | {"mul_chain": chain(ours.segmented_mul)}
ALL_RIVALS = RIVALS | {"mul_chain": [chain(rival) for rival in RIVALS["mul"]]}
OPERATIONS = tuple(ALL_RIVALS)
PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}


def about(device: str) -> str:
    return f"jax {jax.__version__}, {jax.devices(PLATFORMS[device])[0].device_kind}"


def can(cell: Cell) -> bool:
    return True


def clock(device: str) -> timing.Clock:
    return timing.wall  # every job waits for its result


def jobs(cell: Cell, device: str) -> Jobs:
    data, place, m = cell.data(), jax.devices(PLATFORMS[device])[0], cell.m

    def put(array: np.ndarray, dtype: str = cell.dtype) -> Array:
        return jax.device_put(jnp.asarray(array, dtype), place)

    inputs, moving = [put(x) for x in data.inputs], [put(x) for x in data.moving]
    idx, cotangent = put(data.idx, "int32"), put(data.cotangent)

    def job(function: Callable[..., Array]) -> Job:
        """A call without arguments that does what the order says, and waits for the result."""

        def gradients(cotangent: Array, *leaves: Array, idx: Array) -> tuple[Array, tuple[Array, ...]]:
            out, pull = jax.vjp(lambda *leaves: function(*leaves, idx, m), *leaves)
            return out, pull(cotangent)

        def second(moving: list[Array], cotangent: Array, *leaves: Array, idx: Array) -> object:
            first, pull = jax.vjp(lambda *a: gradients(*a, idx=idx)[1], cotangent, *leaves)
            return first, pull(tuple(moving))

        run, arguments = {
            "forward": (lambda *leaves, idx: function(*leaves, idx, m), inputs),
            "backward": (gradients, [cotangent, *inputs]),
            "second": (second, [moving, cotangent, *inputs]),
        }[cell.order]
        compiled = jax.jit(run)
        return lambda: jax.block_until_ready(compiled(*arguments, idx=idx))

    largest, copy = jax.device_put(jnp.ones(cell.largest(), cell.dtype), place), jax.jit(jnp.copy)
    return Jobs(
        job(OURS[cell.operation]),
        {rival.__name__: job(rival) for rival in ALL_RIVALS[cell.operation]},
        lambda: jax.block_until_ready(copy(largest)),
    )
