# SPDX-License-Identifier: Apache-2.0
"""Kernels in Warp's Python DSL, private: they serve CUDA, strided arrays, and captures on the CPU.

_rule       the association rule: what fixes the bits of a sum
reduce      the reduce skeleton and its terms
element     element-wise operations
segment     operations on segments alone, and counts
launch      from arrays to launches of these
dispatch    the operations, by the native engine or by launches
signatures  what the public launchers accept

A new reduction is a term in `reduce`, a new element-wise operation a term in `element`.
"""
