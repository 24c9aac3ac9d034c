# SPDX-License-Identifier: Apache-2.0
"""The engine's functions as XLA FFI handlers: compiled code that XLA calls, on its own threads.

The tables are built apart from those of `Engine`, since a handler shares work between the threads of the XLA program
that calls it.
"""

from __future__ import annotations

from ._engine import TABLES, _lock
from ._signatures import TYPED, exports


def table_of(name: str) -> str | None:
    """The table that has operation `name`."""
    return next((table for table in TABLES if name in TYPED[table]), None)


def handlers(table: str) -> dict[str, int]:
    """Compile a table; the address of each handler by name and dtype: ``"sum_f32"``.

    Raises
    ------
    NativeBuildError
        If the compilation fails.
    """
    from ._build import build  # Warp is imported when the engine is first needed

    with _lock:
        addresses = build("xla_" + table)
    return {name: address for (name, _, _), address in zip(exports("xla_" + table), addresses, strict=True)}
