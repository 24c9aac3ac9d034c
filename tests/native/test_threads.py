# SPDX-License-Identifier: Apache-2.0
"""Which pool, how many threads, and that building and forking do no harm."""

import os
import pathlib
import textwrap
import threading

import numpy as np
import pytest
from native.harness import DTYPES, call, make_inputs, same_bits, sorted_idx
from native.process import python

from segmentops.native import _threads

CALL = """
    import numpy as np
    from segmentops import native
    x, idx, out = np.ones((50_000, 3)), np.zeros(50_000, np.int32), np.zeros((1, 3))
    def pool(threads):
        out[:] = 0
        f = native.load().sum_f64
        f(x.ctypes.data, idx.ctypes.data, out.ctypes.data, 50_000, 1, 3, threads << 8)
        return out.tolist()
"""


def test_small_jobs_get_one_thread():
    assert _threads.threads(1) == 1


def test_without_torch():
    """The system's libgomp, or one thread: no error either way, and OMP_NUM_THREADS is honoured."""
    program = CALL + "    import sys; print(pool(3), native.threads(10**7), 'torch' in sys.modules)"
    lines = python(program, OMP_NUM_THREADS="3,2")
    assert lines[-1] == "[[50000.0, 50000.0, 50000.0]] 3 False"


def test_torchs_pool_and_its_number_of_threads():
    pytest.importorskip("torch")
    lines = python("import torch\n" + textwrap.dedent(CALL) + textwrap.dedent("""
        torch.set_num_threads(1)
        print(native.threads(10**7))
        torch.set_num_threads(2)
        print(native.threads(10**7), pool(2))
        from segmentops.native import _threads
        print(_threads._mapped_libgomp())
        """))  # fmt: skip
    assert lines[-3:-1] == ["1", "2 [[50000.0, 50000.0, 50000.0]]"]
    assert "torch" in lines[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_runs_on_one_thread():
    """The parent's pool does not exist there: libgomp would wait for ever."""
    lines = python(
        CALL
        + """
    import os
    pool(2)
    child = os.fork()
    if child == 0:
        os._exit(native.threads(10**7) + 10 * (pool(native.threads(10**7)) != [[5e4] * 3]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    )
    assert lines[-1] == "1"


def test_two_first_calls_at_once():
    lines = python(
        CALL
        + """
    import threading
    results = []
    workers = [threading.Thread(target=lambda: results.append(pool(1))) for _ in range(4)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    print(results == [[[5e4] * 3]] * 4)
    """
    )
    assert lines[-1] == "True"


def test_more_threads_than_cores():
    """Far more than this machine has, and more than the engine ever uses: the bits of one thread."""
    idx, _ = sorted_idx([3, 70_000, 5, 4096, 1, 9000])
    for name in ("sum", "broadcast", "mul_backward", "max_norm", "outer", "matvec_double_backward"):
        inputs = make_inputs(name, np.float64, len(idx), 6, 3, 2)
        one = call(name, inputs, idx, 6, 3, 2)
        for threads in (64, 1000):
            many = call(name, inputs, idx, 6, 3, 2, threads=threads)
            assert all(same_bits(one[key], many[key]) for key in one), (name, threads)


def test_calls_from_many_python_threads_at_once():
    """Functions of all tables, with more threads each than there are cores."""
    lengths = [200_000, 5, 90_000, 1, 4097]
    idx, _ = sorted_idx(lengths)
    jobs = []
    for name in ("sum", "mul_backward", "spread", "outer", "dot_double_backward", "max_norm"):
        for dtype in (np.float32, np.float64, np.float16):
            inputs = make_inputs(name, dtype, len(idx), 5, 3, 3)
            jobs.append((name, inputs, call(name, inputs, idx, 5, 3, 3)))
    wrong, done = [], []

    def work(first):
        for i in range(first, first + 40):
            name, inputs, want = jobs[i % len(jobs)]
            got = call(name, inputs, idx, 5, 3, 3, threads=8)
            wrong.extend(name for key in want if not same_bits(got[key], want[key]))
        done.append(first)

    workers = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    assert sorted(done) == list(range(8)) and not wrong


SMALL_STACK = """
    import sys, threading
    sys.path.insert(0, {tests!r})
    import numpy as np
    from native.harness import DTYPES, OPS, call, make_inputs, same_bits, sorted_idx
    from segmentops import native

    def results(dtype, threads):
        for name, op in OPS.items():
            for k, lengths in {{1: [9000, 2000], 3: [2, 3], 20: [2, 3], 160: [17, 1, 4200], 1091: [65, 270]}}.items():
                j = {{160: 3, 1091: 9}}.get(k, k) if op.matrix else 1
                inputs = make_inputs(name, dtype, sum(lengths), len(lengths), k, j)
                yield name, k, call(name, inputs, sorted_idx(lengths)[0], len(lengths), k, j, threads=threads)

    def compare(dtype):
        for (name, k, a), (_, _, b) in zip(results(dtype, 1), results(dtype, 64)):
            assert all(same_bits(a[key], b[key]) for key in a), (name, k)
        print(dtype.__name__)

    native.load().warmup(half=True)
    threading.stack_size(128 << 10)
    for dtype in DTYPES.values():
        worker = threading.Thread(target=compare, args=[dtype])
        worker.start()
        worker.join()
"""


def test_a_thread_with_a_small_stack():
    """128 KiB, as musl gives: every function at any width, with partial sums for many threads."""
    lines = python(SMALL_STACK.format(tests=str(pathlib.Path(__file__).parents[1])))
    assert lines == [dtype.__name__ for dtype in DTYPES.values()]


def test_no_memory_for_scratch():
    """A MemoryError from functions that are built-ins and from those of ctypes; the next call works."""
    lines = python("""
    import ctypes
    import numpy as np
    from segmentops.native import _builtin, _engine
    x, idx, out = np.ones((300, 640)), np.zeros(300, np.int32), np.zeros((1, 640))
    found = _engine.addresses("core")
    nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(lambda size: None)
    for kind in (_builtin.AVAILABLE, False):
        _builtin.AVAILABLE = kind
        f = _engine._callables("core", found)["sum_f64"]
        set_heap = _engine.prototype("malloc free")(found["heap"])
        set_heap(ctypes.cast(nothing, ctypes.c_void_p).value, 0)
        try:
            f(x.ctypes.data, idx.ctypes.data, out.ctypes.data, 300, 1, 640, 256)
        except MemoryError:
            print("MemoryError")
        set_heap(*_engine.memory_functions("malloc", "free"))
        print(f(x.ctypes.data, idx.ctypes.data, out.ctypes.data, 300, 1, 640, 256), (out == 300).all())
    """)
    assert lines == ["MemoryError", "-1 True"] * 2


def test_import_brings_no_framework_along():
    lines = python("""
    import sys
    before = set(sys.modules)
    import segmentops.native
    print(sorted(m for m in ("torch", "jax", "numpy") if m in set(sys.modules) - before))
    """)
    assert lines[-1] == "[]"
