# SPDX-License-Identifier: Apache-2.0
"""Writes src/segmentops/warp_backward.pyi: what editors and type checkers read of launchers that are made at import.

    .venv/bin/python scripts/write_stubs.py
"""

from __future__ import annotations

import inspect
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUB = ROOT / "src" / "segmentops" / "warp_backward.pyi"


def stubs() -> str:
    sys.path.insert(0, str(ROOT / "src"))
    from segmentops import warp_backward

    names = sorted(warp_backward.__all__)
    listed = "".join(f'    "{name}",\n' for name in names)
    parts = [f"# Written by scripts/write_stubs.py.\nimport warp as wp\n\n__all__ = [\n{listed}]\n"]
    for name in names:
        function = getattr(warp_backward, name)
        parameters = inspect.signature(function).parameters.values()
        arguments = ", ".join(f"{p.name}: {'int' if p.annotation is int else 'wp.array'}" for p in parameters)
        says = inspect.getdoc(function).partition("Parameters\n")[0].strip()  # type: ignore[union-attr]
        parts += [f"def {name}({arguments}) -> None:", textwrap.indent(f'"""{says}\n"""\n', "    ")]
    return "\n".join(parts)


if __name__ == "__main__":
    STUB.write_text(stubs())
