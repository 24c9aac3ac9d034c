# SPDX-License-Identifier: Apache-2.0
"""The engine as shared libraries, and random calls of them (tests/native/fuzz.py). `sanitize.sh` runs this.

python scripts/sanitize.py sources FOLDER                writes a C++ file for each table of functions
python scripts/sanitize.py calls FOLDER SECONDS [sort]   calls the libraries of the folder until the time is over
python scripts/sanitize.py tests FOLDER ARGUMENTS        pytest, with the libraries of the folder
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import threading
import time
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from segmentops.native import _engine, _threads  # noqa: E402
from segmentops.ops.abi import exports  # noqa: E402


def sources(folder: pathlib.Path) -> None:
    from segmentops.native._build import _preamble

    for table in (*_engine.TABLES, *_engine.HALF_TABLES, _engine.PLAIN):
        text = _preamble(table, {}) + 'extern "C" const void* const* table_address() { return seg_table; }\n'
        (folder / f"{table}.cpp").write_text(text)


def use(folder: pathlib.Path) -> None:
    """Make the package take the engine from the libraries of a folder instead of building it."""
    os.environ.pop("LD_PRELOAD", None)  # not for the symbolizer, which the sanitizer starts

    def build(table: str, defines: object = None) -> list[int]:
        address = ctypes.CDLL(str(folder / f"{table}.so")).table_address
        address.restype = ctypes.POINTER(ctypes.c_uint64)
        return address()[: len(exports(table))]

    pool = ctypes.CDLL(str(folder / "pool.so"))
    functions = pool.pool_parallel, pool.pool_rank, pool.pool_size
    parallel, rank, size = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    sys.modules["segmentops.native._build"] = SimpleNamespace(build=build)
    _threads.pool_addresses = lambda: (parallel, rank, size)


def calls(folder: pathlib.Path, seconds: float, sort: bool) -> int:
    """From two threads at once: the engine is called without the interpreter's lock.

    `sort`: no reductions over an idx that is not sorted. A segment that then lies in the shares of two threads is
    written by both, one of the two values is what it gets; that is a race to a sanitizer.
    """
    import numpy as np
    from native import fuzz

    use(folder)
    end, done, failed = time.monotonic() + seconds, [0, 0], []

    def place(array):
        """A copy whose memory ends where it ends, and which is aligned for its scalars only."""
        shift = int(rng.integers(4)) * array.itemsize
        copy = np.empty(array.nbytes + shift, np.uint8)[shift:].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def work(first: int) -> None:
        seed = first
        while time.monotonic() < end and not failed:
            try:
                fuzz.case(seed, place, sort)
            except BaseException as error:
                failed.append(f"{type(error).__name__}: {error}")
            done[first] += 1
            seed += 2

    rng = np.random.default_rng(0)
    workers = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{sum(done)} random calls", *failed)
    return bool(failed)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sources", folder]:
            sources(pathlib.Path(folder))
        case ["calls", folder, seconds, *sort]:
            sys.exit(calls(pathlib.Path(folder), float(seconds), bool(sort)))
        case ["tests", folder, *arguments]:
            import pytest

            use(pathlib.Path(folder))
            sys.exit(pytest.main(["-p", "no:cacheprovider", *arguments]))
        case _:
            sys.exit(__doc__)
