# SPDX-License-Identifier: Apache-2.0
"""The interface on JAX arrays: see `segmentops.jax`."""

from .segment_ops import *  # noqa: F403
from .segment_ops import __all__ as __all__
