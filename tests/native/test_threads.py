# SPDX-License-Identifier: Apache-2.0
"""Which pool, how many threads, and that building and forking do no harm."""

import os
import subprocess
import sys
import textwrap

import pytest

from nvalchemiops.native import _threads

SOURCE = os.path.join(os.path.dirname(__file__), "..", "..", "src")


def run(program, **environment):
    """Run in a fresh process; what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", "import warp; warp.config.log_level = 30\n" + textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().splitlines()


CALL = """
    import numpy as np
    from nvalchemiops import native
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
    lines = run(program, OMP_NUM_THREADS="3,2")
    assert lines[-1] == "[[50000.0, 50000.0, 50000.0]] 3 False"


def test_torchs_pool_and_its_number_of_threads():
    pytest.importorskip("torch")
    lines = run("import torch\n" + textwrap.dedent(CALL) + textwrap.dedent("""
        torch.set_num_threads(1)
        print(native.threads(10**7))
        torch.set_num_threads(2)
        print(native.threads(10**7), pool(2))
        from nvalchemiops.native import _threads
        print(_threads._mapped_libgomp())
        """))  # fmt: skip
    assert lines[-3:-1] == ["1", "2 [[50000.0, 50000.0, 50000.0]]"]
    assert "torch" in lines[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_runs_on_one_thread():
    """The parent's pool does not exist there: libgomp would wait for ever."""
    lines = run(
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
    lines = run(
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


def test_calls_from_many_python_threads_at_once():
    lines = run("""
    import numpy as np, threading
    from nvalchemiops import native
    f = native.load().sum_f64
    x, idx = np.arange(90_000.0), np.repeat(np.arange(3, dtype=np.int32), 30_000)
    want = x.reshape(3, 30_000).sum(1)
    wrong = []
    def work():
        for _ in range(20):
            out = np.zeros(3)
            f(x.ctypes.data, idx.ctypes.data, out.ctypes.data, 90_000, 3, 1, 2 << 8)
            wrong.extend(out[out != want])
    workers = [threading.Thread(target=work) for _ in range(3)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    print(wrong)
    """)
    assert lines[-1] == "[]"


def test_import_brings_no_framework_along():
    lines = run("""
    import sys
    before = set(sys.modules)
    import nvalchemiops.native
    print(sorted(m for m in ("torch", "jax", "numpy") if m in set(sys.modules) - before))
    """)
    assert lines[-1] == "[]"
