# SPDX-License-Identifier: Apache-2.0
"""PyTorch bindings: `nvalchemiops.torch.segment_ops`, the index check, and operations from your own launchers."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("nvalchemiops.torch needs PyTorch, which is not installed: pip install 'torch>=2.8'") from error

from ._chain import register_warp_op_chain
from ._index import invalidate, set_index_check

__all__ = ["invalidate", "register_warp_op_chain", "set_index_check"]
