# SPDX-License-Identifier: Apache-2.0
"""NVALCHEMIOPS_TEST_CPU_FLAGS builds the engine for another machine, as in "-target-cpu x86-64-v3" (AVX2)."""

import os

import warp as wp

if flags := os.environ.get("NVALCHEMIOPS_TEST_CPU_FLAGS"):
    wp.config.cpu_compiler_flags = flags
