# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the PyTorch tests. This directory joins the end of the path: nothing else has its names."""

import os
import sys

sys.path.append(os.path.dirname(__file__))

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def no_leaked_level():
    """A failed compile of a forward-mode transform leaves the C++ dual level entered, for later tests."""
    yield
    try:
        torch._C._exit_dual_level(0)
    except RuntimeError:
        return
    pytest.fail("a forward-mode level leaked")


@pytest.fixture
def threads():
    """torch.set_num_threads, put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
