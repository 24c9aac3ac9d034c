# SPDX-License-Identifier: Apache-2.0
"""Launchers on Warp arrays: see `segmentops.warp`."""

from segmentops.warp import *  # noqa: F403
from segmentops.warp import __all__ as __all__
