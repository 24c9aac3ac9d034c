# SPDX-License-Identifier: Apache-2.0
"""Where the kernels live: one small Warp module per family, operation and types.

A kernel that is declared late would change the hash of its module and recompile it, which is fatal
inside a capture. So all kernels of a module are declared together, before any of them is compiled.
Small modules keep the first call of an operation short.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import warp as wp

from .._building import building

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
        def declared(name: str, scalar: str, index: str) -> dict[str, wp.Kernel]:
            module = wp.get_module(f"segmentops.kernels.{label}.{name}.{scalar}.{index}")
            # No contraction: sums must have the same bits on every device.
            module.options.update(enable_backward=False, fuse_fp=False, fast_math=False)
            return {
                key: wp.Kernel(fn, key=key, module=module, options={"enable_backward": False})
                for key, fn in build(name, SCALARS[scalar], INDICES[index]).items()
            }

        @functools.cache
        def kernels(name: str, scalar: str = "f32", index: str = "i32") -> dict[str, wp.Kernel]:
            with building():  # kernels that a second thread declares would replace those that the first one launches
                return declared(name, scalar, index)

        FAMILIES[label] = (tuple(names), kernels)
        return kernels

    return register


_SHAPES = ((), (3,), (3, 3))  # of an entry of an array

SIZES = {wp.float16: 2, wp.bfloat16: 2, wp.float32: 4, wp.float64: 8, wp.int32: 4, wp.int64: 8}


@functools.cache
def kind_of(dtype: Any) -> tuple[Any, int] | None:
    """The scalar type of an array's dtype and how many scalars it has; None for what the launchers do not know.

    Warp makes vectors of any type, and a class each time that it is asked in other words: what counts is inside.
    """
    scalar, shape = getattr(dtype, "_wp_scalar_type_", dtype), getattr(dtype, "_shape_", ())
    return (scalar, math.prod(shape)) if scalar in SIZES and shape in _SHAPES else None


def kind(dtype: Any) -> tuple[Any, int]:
    """The same for what was checked."""
    found = kind_of(dtype)
    assert found, dtype
    return found


_NAMES = {v: k for k, v in (SCALARS | INDICES).items()}


def type_name(dtype: Any) -> str:
    """The name of a scalar or index type in SCALARS or INDICES."""
    return _NAMES[dtype]
