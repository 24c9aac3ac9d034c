# SPDX-License-Identifier: Apache-2.0
"""Docstring examples run, and every public function has one."""

import doctest
import importlib
import inspect
import pathlib
import runpy

import pytest
import warp as wp

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = [
    "segmentops.ops.launchers",
    "segmentops.ops.calculus",
    "segmentops.warp",
    "segmentops.warp_backward",
    "segmentops.torch._chain",
    "segmentops.torch._index",
    "segmentops.torch.segment_ops",
]
PUBLIC = ["segmentops.torch", "segmentops.torch.segment_ops", "segmentops.warp"]


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


def test_stubs_are_what_the_script_writes():
    script = runpy.run_path(str(ROOT / "scripts" / "write_stubs.py"))
    assert script["STUB"].read_text() == script["stubs"]()
