# SPDX-License-Identifier: Apache-2.0
"""The engine as Python sees it: one function for each name of `ops.abi`, compiled on first use."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import _building
from ..ops.abi import COMMON, INTEGERS, exports
from . import _builtin, _threads

TABLES = ("core", "second")
NO_MEMORY = -2  # what a function returns then (`scratch.h`); the built-ins raise MemoryError themselves
PLAIN = "plain"  # the calls of the PyTorch binding
HALF_TABLES = ("half_core", "half_second")  # apart: who has no half precision does not wait for them


class NativeBuildError(RuntimeError):
    """The native engine could not be compiled or loaded; the message says why."""


def prototype(arguments: str) -> Callable[[int], Any]:
    """The ctypes prototype for a string of argument names. A call releases the GIL."""
    types = [ctypes.c_int64 if name in INTEGERS else ctypes.c_void_p for name in arguments.split()]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *types)


def addresses(table: str, defines: dict[str, str] | None = None) -> dict[str, int]:
    """Build a table, set it up to run on this process's thread pool, and return the addresses of its functions."""
    from ._build import build  # Warp is imported when the engine is first needed

    found = build(table, defines)
    rows = {name: at for (name, _, _), at in zip(exports(table), found, strict=True)}
    pool = _threads.pool_addresses()
    if pool is not None:
        prototype(COMMON["configure"])(rows["configure"])(*pool)
    use_memory(rows)
    if _builtin.AVAILABLE:
        require_layout(rows["layout"], _builtin.Interpreter, _builtin.Target)
        prototype(COMMON["attach"])(rows["attach"])(_builtin.interpreter())
    return rows


def require_layout(function: int, *structures: type[ctypes.Structure]) -> None:
    """Raise unless the structures are, field by field, what the native code takes them for; see `builtin.h`."""
    wrong = _builtin.differences(prototype("")(function)(), structures)
    if wrong:
        raise NativeBuildError(f"the native code and Python disagree about where these are: {', '.join(wrong)}")


def memory_functions(*names: str) -> list[int]:
    """Addresses of functions of the C library."""
    library = ctypes.CDLL(None) if os.name == "posix" else ctypes.cdll.msvcrt
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]


def use_memory(rows: dict[str, int]) -> None:
    """Tell a table where the C library's functions for memory are (`scratch.h`, `pages.h`)."""
    prototype(COMMON["heap"])(rows["heap"])(*memory_functions("malloc", "free"))
    if sys.platform == "linux":
        prototype(COMMON["pages"])(rows["pages"])(*memory_functions("madvise"))


def functions(table: str, defines: dict[str, str] | None = None) -> dict[str, Any]:
    """Build a table and return the functions that Python calls, by name."""
    return _callables(table, addresses(table, defines))


def _refuse_without_memory(result: int, *_: Any) -> int:
    if result == NO_MEMORY:
        raise MemoryError
    return result


def _callables(table: str, rows: dict[str, int]) -> dict[str, Any]:
    wanted = {n: a.split() for n, _, a in exports(table) if n not in COMMON and "n" in a.split()}
    if not _builtin.AVAILABLE:
        found = {name: prototype(" ".join(arguments))(rows[name]) for name, arguments in wanted.items()}
        for function in found.values():
            function.errcheck = _refuse_without_memory
        return found
    return {name: _builtin.builtin(name, rows["enter"], rows[name], arguments) for name, arguments in wanted.items()}


class Engine:
    """Native functions as attributes: ``engine.sum_f32(...)``.

    The first use of a name compiles the table that it is in; then all functions of that table are plain attributes.
    """

    def __init__(self) -> None:
        self._failures: dict[str, str] = {}
        self._addresses: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        self.address(name)
        return self.__dict__[name]

    def address(self, name: str) -> int:
        """Where a function of any table is; like its first use, this compiles the table."""
        if name not in self._addresses:
            for table in (*TABLES, *HALF_TABLES, PLAIN):
                if name not in COMMON and any(name == row[0] for row in exports(table)):
                    self.build(table)
                    break
            else:
                raise AttributeError(f"the native engine has no function {name!r}")
        return self._addresses[name]

    def build(self, table: str) -> None:
        """Compile one table, if that has not been done. A table that failed is not tried again: it costs seconds."""
        with _building.building():  # the second of two first calls waits
            if table in self._failures:
                raise NativeBuildError(self._failures[table])
            if table not in self.__dict__:
                try:
                    rows = addresses(table)
                    self._addresses.update(rows)
                    self.__dict__.update(_callables(table, rows), **{table: True})
                except NativeBuildError as error:
                    self._failures[table] = str(error)
                    raise

    def warmup(self, half: bool = False) -> None:
        """Compile everything now, what is for float16 and bfloat16 only if asked for."""
        for table in (*TABLES, PLAIN, *HALF_TABLES * half):
            self.build(table)


_engine = Engine()


def load() -> Engine:
    """The engine of this process. Nothing is compiled until a function is used."""
    return _engine
