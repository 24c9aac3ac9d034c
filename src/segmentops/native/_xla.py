# SPDX-License-Identifier: Apache-2.0
"""The engine's functions as XLA FFI handlers: compiled code that XLA calls, on its own threads.

The tables are built apart from those of `Engine`, since a handler shares work between the threads of the XLA program
that calls it.
"""

from __future__ import annotations

from ..ops.abi import MEMORY, exports
from ._engine import use_memory
from ._threads import PAYS_FROM


def handlers(table: str) -> dict[str, int]:
    """Compile a table; the address of each handler by name and dtype: ``"sum_f32"``.

    Raises
    ------
    NativeBuildError
        If the compilation fails.
    """
    from ._build import build  # Warp is imported when the engine is first needed

    table = "xla_" + table
    addresses = build(table, {"SEG_PAYS_FROM": str(PAYS_FROM)})
    rows = {name: address for (name, _, _), address in zip(exports(table), addresses, strict=True)}
    use_memory(rows)
    return {name: at for name, at in rows.items() if name not in MEMORY}
