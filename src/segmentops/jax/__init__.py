# SPDX-License-Identifier: Apache-2.0
"""JAX bindings: the segment operations, and the FFI handlers that exported programs need."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("segmentops.jax needs JAX, which is not installed: pip install 'jax>=0.10'") from error

from . import segment_ops
from ._lowering import ffi_targets
from .segment_ops import *  # noqa: F403

__all__ = ["ffi_targets", *segment_ops.__all__]


def __dir__() -> list[str]:
    return list(__all__)
