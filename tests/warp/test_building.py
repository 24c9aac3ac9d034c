# SPDX-License-Identifier: Apache-2.0
"""Kernels are built once, whoever comes first: two threads, and a child that was forked while one of them builds."""

import os
import threading
import time

import numpy as np
import pytest
import warp as wp
from launchers import call, route, sorted_idx
from native.process import python

from segmentops.kernels import _packed, _registry


def test_two_threads_build_one_packed_kernel(monkeypatch):
    """The second waits for the first, and gets what that has built."""
    built = []

    class Slow(_packed.Packed):
        def __init__(self, *arguments):
            built.append(threading.get_ident())
            time.sleep(0.3)
            super().__init__(*arguments)

    monkeypatch.setattr(_packed, "_packed", {})
    monkeypatch.setattr(_packed, "Packed", Slow)
    idx, results = sorted_idx(30, 4), []
    start = threading.Barrier(2)

    def run():
        start.wait()
        results.append(call("segmented_sum", {"x": np.ones((30, 1))}, idx, 4, 1, np.float32)["out"])

    with route("kernels"):
        threads = [threading.Thread(target=run) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert len(built) == 1
    for out in results:
        np.testing.assert_array_equal(out.ravel(), np.bincount(idx, minlength=4))


def test_two_threads_declare_the_kernels_of_a_module_once(monkeypatch):
    monkeypatch.setattr(_registry, "FAMILIES", {})
    declared, found = [], []

    @_registry.family(["one"])
    def slow(name, scalar, index):
        declared.append(name)
        time.sleep(0.3)

        def nothing(x: wp.array(dtype=scalar)):
            x[wp.tid()] = scalar(0.0)

        return {"nothing": nothing}

    threads = [threading.Thread(target=lambda: found.append(slow("one"))) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert declared == ["one"] and found[0] is found[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("way", ["engine", "kernels"])
def test_a_first_call_in_a_child_that_was_forked_while_the_lock_was_held(way):
    (code,) = python(f"""
    import os, signal, threading
    import warp as wp
    from segmentops import _building
    from segmentops.kernels import dispatch
    from segmentops.warp import segmented_mul
    dispatch.use_engine = {way == "engine"}
    x = wp.array([1.0, 2.0, 3.0], dtype=wp.float32, device="cpu")
    idx = wp.array([0, 0, 1], dtype=wp.int32, device="cpu")
    out = wp.zeros_like(x)
    held = threading.Event()
    def hold():
        with _building.building():
            held.set()
            threading.Event().wait(60)
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        segmented_mul(x, x[:2], idx, out)
        os._exit(out.numpy().tolist() != [1, 2, 6])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert code == "0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_who_forks_while_building_lets_go_of_the_lock():
    (code,) = python("""
    import os, threading
    from segmentops import _building
    with _building.building():
        child = os.fork()
    if child == 0:
        other = threading.Thread(target=lambda: _building.building().__enter__(), daemon=True)
        other.start()
        other.join(30)
        os._exit(other.is_alive())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert code == "0"
