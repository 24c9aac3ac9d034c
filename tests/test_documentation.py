# SPDX-License-Identifier: Apache-2.0
"""Docstring examples run, and every public function has one."""

import doctest
import importlib
import inspect

import pytest
import warp as wp

MODULES = [
    "nvalchemiops.algebra",
    "nvalchemiops.segment_ops",
    "nvalchemiops.segment_ops_backward",
    "nvalchemiops.torch._chain",
    "nvalchemiops.torch._index",
    "nvalchemiops.torch.segment_ops",
]
PUBLIC = ["nvalchemiops.torch", "nvalchemiops.torch.segment_ops", "nvalchemiops.segment_ops"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    wp.init()
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_have_examples(name):
    module = importlib.import_module(name)
    found = [getattr(module, n) for n in module.__all__ if not inspect.ismodule(getattr(module, n))]
    assert found and not [f for f in found if ">>>" not in (f.__doc__ or "")]
