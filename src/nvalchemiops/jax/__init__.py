# SPDX-License-Identifier: Apache-2.0
"""JAX bindings: `nvalchemiops.jax.segment_ops`, and the FFI handlers that exported programs need."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("nvalchemiops.jax needs JAX, which is not installed: pip install 'jax>=0.10'") from error

from ._lowering import ffi_targets

__all__ = ["ffi_targets"]
