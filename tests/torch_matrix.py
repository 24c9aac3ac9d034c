# SPDX-License-Identifier: Apache-2.0
"""docs/transforms_torch.md: which transform and which compiler works with which operation, written by the tests.

    .venv/bin/python -m pytest tests/torch/test_{transforms,modules,compile}.py --transform-matrix

A cell is "yes" if every test of it passed; "skipped" names what is skipped for a fault of torch itself (the test says
which).
"""

from __future__ import annotations

import pathlib

import oracles
import torch

OPS = tuple(op.short for op in oracles.OPS)
FILES = ("test_transforms.py", "test_modules.py", "test_compile.py")
COMMAND = ".venv/bin/python -m pytest tests/torch/test_{transforms,modules,compile}.py --transform-matrix"
TARGET = pathlib.Path(__file__).parents[1] / "docs" / "transforms_torch.md"


class Matrix:
    """A pytest plugin that collects outcomes and writes the table at the end."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, set[str]]] = {}

    def pytest_runtest_logreport(self, report) -> None:
        path, _, rest = report.nodeid.partition("::")
        if pathlib.Path(path).name not in FILES or not (report.when == "call" or report.outcome != "passed"):
            return
        name, _, parameters = rest.rstrip("]").partition("[")
        words = parameters.split("-")
        op = next((w for w in words if w in OPS), None)
        if op is None:
            return
        row = name.removeprefix("test_").replace("_", " ")
        if name == "test_func":
            row = f"torch.func: {words[0]}"
        elif name == "test_transforms_inside":
            row = f"torch.compile of {words[0]}"
        self.rows.setdefault(row, {}).setdefault(op, set()).add(report.outcome)

    def pytest_sessionfinish(self, session) -> None:
        lines = [
            "# PyTorch: operations, transforms and compilers",
            "",
            f"Written by `{COMMAND}`",
            f"with torch {torch.__version__}, which runs each pair against a composition of torch's own operations. "
            "Rows are named for the tests.",
            "",
            f"| transform | {' | '.join(OPS)} |",
            "| --- |" + " --- |" * len(OPS),
        ]
        for row, found in self.rows.items():
            lines.append(f"| {row} | {' | '.join(_cell(found.get(op, set())) for op in OPS)} |")
        TARGET.write_text("\n".join(lines) + "\n")


def _cell(outcomes: set[str]) -> str:
    if "failed" in outcomes:
        return "no"
    return "yes" if "passed" in outcomes else "skipped" if outcomes else ""
