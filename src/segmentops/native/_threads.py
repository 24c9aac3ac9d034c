# SPDX-License-Identifier: Apache-2.0
"""How many threads a job gets, and whose threads they are.

The engine runs on an OpenMP pool that the process already has: torch's, if torch is loaded, else that of the system's
libgomp; where there is neither (macOS, Windows, slim images) it runs on one thread. A forked child runs on one thread,
too: the parent's pool does not exist there, and libgomp would wait for it for ever.
"""

from __future__ import annotations

import ctypes
import os
import sys
from types import ModuleType

# Scalars below which a pool saves little: waking it takes 2 to 5 us, and milliseconds where other processes hold the
# cores that its threads spin on.
PAYS_FROM = 65_536

_forked = False
_omp_threads: int | None = None


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def loaded_torch() -> ModuleType | None:
    """torch, if the process has imported it (completely); it is never imported here."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_num_threads") else None


def _mapped_libgomp() -> str | None:
    """The libgomp that is mapped into this process: a pip torch brings its own, under its own name."""
    try:
        with open("/proc/self/maps") as maps:
            return next((line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line), None)
    except OSError:
        return None


def pool_addresses() -> tuple[int, int, int] | None:
    """Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads; None without libgomp."""
    for library in (_mapped_libgomp(), "libgomp.so.1"):
        if library is None:
            continue
        try:
            gomp = ctypes.CDLL(library)
            functions = [gomp.GOMP_parallel, gomp.omp_get_thread_num, gomp.omp_get_num_threads]
        except (OSError, AttributeError):
            continue
        parallel, rank, size = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
        return parallel, rank, size
    return None


def _environment_threads() -> int:
    """What OMP_NUM_THREADS says, else the cores that this process may use."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(flat: int) -> int:
    """The number of threads for a job over `flat` scalars.

    Parameters
    ----------
    flat : int
        Scalars read or written, roughly: what the job costs.

    Returns
    -------
    int
        1 below the size where threads pay and in a forked child; else what torch uses, if torch is loaded; else
        OMP_NUM_THREADS or the number of cores.
    """
    global _omp_threads
    if flat < PAYS_FROM or _forked:
        return 1
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return torch.get_num_threads()
    if _omp_threads is None:
        _omp_threads = _environment_threads()
    return _omp_threads
