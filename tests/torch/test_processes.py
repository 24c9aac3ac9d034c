# SPDX-License-Identifier: Apache-2.0
"""Processes that were forked after OpenMP ran in the parent: its threads do not exist there."""

import os
import sys

import pytest
from native.process import python


@pytest.mark.skipif(sys.platform != "linux", reason="a DataLoader forks on Linux only")
def test_collate_fn_of_forked_workers():
    """Also where the worker asks for two threads; a DataLoader sets one."""
    lines = python("""
    import torch
    from torch.utils.data import DataLoader
    from nvalchemiops.torch import segment_ops
    idx = torch.arange(300_000) // 100
    data = torch.randn(4, 300_000, 3, dtype=torch.float64)

    def collate(items):
        torch.set_num_threads(2)
        x = data[items[0]]
        norms = segment_ops.segmented_rms_norm(x, idx, 3000)
        return segment_ops.segmented_sum(segment_ops.segmented_mul(x, norms, idx, 3000), idx, 3000)

    expected = [collate([item]) for item in range(4)]
    loader = DataLoader(range(4), num_workers=2, collate_fn=collate, multiprocessing_context="fork", timeout=600)
    print([torch.equal(got, right) for got, right in zip(loader, expected, strict=True)])
    """)
    assert lines == ["[True, True, True, True]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_first_call_in_a_forked_child():
    """While another thread of the parent compiles, and holds the lock."""
    lines = python("""
    import os, signal, threading
    import torch
    from nvalchemiops import _building
    from nvalchemiops.torch.segment_ops import segmented_sum
    torch.ones(10**6).sum()
    held = threading.Event()
    def hold():
        with _building.building():
            held.set()
            threading.Event().wait(600)
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        out = segmented_sum(torch.ones(5), torch.tensor([0, 0, 1, 1, 1]), 2)
        os._exit(out.tolist() != [2, 3])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert lines == ["0"]
