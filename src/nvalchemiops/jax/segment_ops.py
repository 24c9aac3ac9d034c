# SPDX-License-Identifier: Apache-2.0
"""The six operations of the interface: see `segmentops.jax`."""

from segmentops.jax import (
    segmented_dot,
    segmented_matvec,
    segmented_mean,
    segmented_mul,
    segmented_rms_norm,
    segmented_sum,
)

__all__ = [
    "segmented_dot",
    "segmented_matvec",
    "segmented_mean",
    "segmented_mul",
    "segmented_rms_norm",
    "segmented_sum",
]
