# SPDX-License-Identifier: Apache-2.0
"""The interface on PyTorch tensors: see `segmentops.torch`."""

from segmentops.torch import register_warp_op_chain

from .segment_ops import *  # noqa: F403
from .segment_ops import __all__ as _operations

__all__ = ["register_warp_op_chain", *_operations]
