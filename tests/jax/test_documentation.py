# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings."""

import doctest

import jax
import pytest
from oracles import OPS

import segmentops.jax._lowering
import segmentops.jax.segment_ops


@pytest.mark.parametrize("module", [segmentops.jax.segment_ops, segmentops.jax._lowering])
def test_examples(module):
    with jax.enable_x64(False):
        found = doctest.testmod(module)
    assert found.attempted > 3 and not found.failed


def test_every_function_is_documented():
    public = segmentops.jax.segment_ops
    assert set(public.__all__) == {op.name for op in OPS}
    for name in public.__all__:
        assert all(part in getattr(public, name).__doc__ for part in ("Parameters", "Returns", "Raises", "Examples"))
