# SPDX-License-Identifier: Apache-2.0
"""Where the kernels live: one small Warp module per family, operation and types.

A kernel that is declared late would change the hash of its module and recompile it, which is fatal
inside a capture. So all kernels of a module are declared together, before any of them is compiled.
Small modules keep the first call of an operation short.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import warp as wp

SCALARS: dict[str, Any] = {"f32": wp.float32, "f64": wp.float64, "f16": wp.float16, "bf16": wp.bfloat16}
# By-products of a forward pass are kept in these: 1 / (out count) is often no number of half precision.
KEPT: dict[Any, Any] = {scalar: scalar for scalar in SCALARS.values()} | {
    wp.float16: wp.float32,
    wp.bfloat16: wp.float32,
}
INDICES: dict[str, Any] = {"i32": wp.int32, "i64": wp.int64}
THREADS = 256  # of a thread block

# build(name, scalar, index) -> the functions of the kernels of one module, by name
Builder = Callable[[str, Any, Any], dict[str, Callable[..., None]]]
Kernels = Callable[[str, str, str], dict[str, wp.Kernel]]

# family: (the names of its modules, its kernels by (name, scalar, index)); the tests go through this table
FAMILIES: dict[str, tuple[tuple[str, ...], Kernels]] = {}


def family(names: Iterable[str]) -> Callable[[Builder], Kernels]:
    """Register a builder of kernels under its own name."""

    def register(build: Builder) -> Kernels:
        label = build.__name__.strip("_")

        @functools.cache
        def kernels(name: str, scalar: str = "f32", index: str = "i32") -> dict[str, wp.Kernel]:
            module = wp.get_module(f"nvalchemiops.kernels.{label}.{name}.{scalar}.{index}")
            # No contraction: sums must have the same bits on every device.
            module.options.update(enable_backward=False, fuse_fp=False, fast_math=False)
            return {
                key: wp.Kernel(fn, key=key, module=module, options={"enable_backward": False})
                for key, fn in build(name, SCALARS[scalar], INDICES[index]).items()
            }

        FAMILIES[label] = (tuple(names), kernels)
        return kernels

    return register


# A dtype of arrays: its scalar type and how many scalars it has.
KINDS: dict[Any, tuple[Any, int]] = {
    wp.vec3h: (wp.float16, 3), wp.vec3f: (wp.float32, 3), wp.vec3d: (wp.float64, 3),
    wp.mat33h: (wp.float16, 9), wp.mat33f: (wp.float32, 9), wp.mat33d: (wp.float64, 9),
    **{scalar: (scalar, 1) for scalar in (*SCALARS.values(), *INDICES.values())},
}  # fmt: skip
SIZES = {wp.float16: 2, wp.bfloat16: 2, wp.float32: 4, wp.float64: 8, wp.int32: 4, wp.int64: 8}

_NAMES = {v: k for k, v in (SCALARS | INDICES).items()}


def type_name(dtype: Any) -> str:
    """The name of a scalar or index type in SCALARS or INDICES."""
    return _NAMES[dtype]
