# SPDX-License-Identifier: Apache-2.0
"""PyTorch bindings: the functions of `segmentops.torch.segment_ops`, the index check, and operations from your own
launchers.

Importing this registers the operations that exported, packaged and scripted programs call.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("segmentops.torch needs PyTorch, which is not installed: pip install 'torch>=2.8'") from error

from . import segment_ops
from ._chain import register_warp_op_chain
from ._index import invalidate, set_index_check
from .segment_ops import *  # noqa: F403

__all__ = ["invalidate", "register_warp_op_chain", "set_index_check", *segment_ops.__all__]


def __dir__() -> list[str]:
    return list(__all__)
