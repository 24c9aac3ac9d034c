# SPDX-License-Identifier: Apache-2.0
"""Differentiable segment operations for PyTorch, JAX and NVIDIA Warp arrays.

N elements (atoms, edges) belong to M segments (molecules, nodes), named by a sorted `idx`. The
functions live in `segmentops.torch`, `segmentops.jax` and, on Warp arrays, `segmentops.warp`.
This module imports no framework.
"""

from __future__ import annotations

__all__ = ["__version__", "warmup"]


def __dir__() -> list[str]:
    return list(__all__)


__version__ = "0.1.0"


def warmup(half: bool = False) -> None:
    """Compile the native code now instead of at the first call.

    The first call of an operation compiles the part of the native code that it belongs to, which takes
    some seconds; Warp keeps the result in its kernel cache. Call this at the start of a simulation or
    when building an image.

    Parameters
    ----------
    half : bool
        Also what float16 and bfloat16 data needs, which is compiled apart.

    Raises
    ------
    segmentops.native.NativeBuildError
        If the native code cannot be compiled.
    """
    from . import native

    native.load().warmup(half)
