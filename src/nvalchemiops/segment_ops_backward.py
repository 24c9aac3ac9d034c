# SPDX-License-Identifier: Apache-2.0
"""Launchers of derivatives on Warp arrays: see `segmentops.warp_backward`."""

from segmentops.warp_backward import *  # noqa: F403
from segmentops.warp_backward import __all__ as __all__
