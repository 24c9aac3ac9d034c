# SPDX-License-Identifier: Apache-2.0
"""What surrounds everything that is compiled or loaded: one lock, a quiet Warp, and a line for who waits.

Whatever builds (the engine's tables, XLA's handlers, Warp's kernels) does so in `building()`, since Warp's modules are
built by one thread at a time. It is the only lock of the package, so no two of them can be taken in different orders,
and the only one that a forked child has to renew.

Warp prints its banner and what it loads to stdout. Users of PyTorch and JAX did not ask for Warp, and their programs'
output may be read by others: what is done for them goes through `quietly()`. Users of Warp keep Warp's own setting.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator

_lock = threading.RLock()


def _renew() -> None:
    """In a forked child: the thread that held the lock in the parent does not exist there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Hold the lock; the same thread may do so again."""
    with _lock:  # evaluated once: who forks in here lets go of the lock that it took
        yield


# ------------------------------------------------------------------ a quiet Warp
@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Warp prints neither banner nor loads. Holds the lock, since the setting is the process's."""
    import warp as wp

    with building():
        before = wp.config.log_level
        wp.config.log_level = max(before, wp.LOG_WARNING)
        try:
            yield
        finally:
            wp.config.log_level = before


_DRIVER = b"Could not find or load the NVIDIA CUDA driver"


@contextlib.contextmanager
def _without_driver_warning() -> Iterator[None]:
    """Drop the line that Warp's native code writes where there is no GPU; no setting of Warp's says that it should not.

    What else comes to stderr meanwhile is passed on when this ends.
    """
    try:
        sys.stderr.flush()
        stderr = os.dup(2)
    except (AttributeError, OSError, ValueError):  # there is none
        yield
        return
    with tempfile.TemporaryFile() as file, os.fdopen(stderr, "wb", 0) as original:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            file.seek(0)
            original.writelines(line for line in file if _DRIVER not in line)


# ------------------------------------------------------------------ Warp's start and its kernel cache
temporary: str | None = None  # why Warp's kernel cache is a folder that goes when the process ends
_initialised = False


def _keeps() -> bool:
    """Whether what is compiled now will be there for the next process."""
    import warp as wp

    folder = wp.config.kernel_cache_dir
    return temporary is None and folder is not None and os.access(folder, os.W_OK | os.X_OK)


def _keep_nothing(reason: str) -> None:
    """Give Warp a kernel cache that goes when the process ends."""
    global temporary
    import warp as wp

    process, folder = os.getpid(), tempfile.mkdtemp(prefix="segmentops-")

    def remove() -> None:
        if os.getpid() == process:  # a forked child leaves it to its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    wp.config.kernel_cache_dir, temporary = folder, reason


def initialise() -> None:
    """`wp.init()`, with a kernel cache that exists: Warp would make a folder `~` where there is no home."""
    import warp as wp

    with building():
        if wp.config.kernel_cache_dir is None and "WARP_CACHE_PATH" not in os.environ:
            cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
            if not os.path.isabs(cache):
                _keep_nothing("there is no home folder")
        try:
            wp.init()
        except OSError as error:  # as a rule, the cache
            _keep_nothing(error.strerror or str(error))
            wp.init()


def initialise_quietly() -> None:
    """The same for who did not ask for Warp: not a word of it."""
    global _initialised
    with quietly():
        if not _initialised:
            with _without_driver_warning():
                initialise()
            _initialised = True


# ------------------------------------------------------------------ a line for who waits
_said: set[str] = set()


@contextlib.contextmanager
def notice(what: str, duration: str = "about 10 s", seconds: float = 1.0) -> Iterator[None]:
    """Say on stderr what is compiled if that takes long, once in a process: later parts of it need no line each."""

    def say() -> None:
        if what in _said or sys.stderr is None:
            return
        _said.add(what)
        once = ", once" if _keeps() else ""
        sys.stderr.write(f"segmentops: compiling {what}, {duration}{once}\n")  # in one piece: a notebook shows pieces
        sys.stderr.flush()

    timer = threading.Timer(seconds, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
