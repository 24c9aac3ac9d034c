# SPDX-License-Identifier: Apache-2.0
"""Functions from source text that is made here, kept where tracebacks, notebooks and TorchScript look for source."""

from __future__ import annotations

import linecache
from typing import Any


def define(title: str, source: str, names: dict[str, Any]) -> Any:
    """The function that `source` defines, with `names` as its globals. It is the last of them."""
    file = f"<segmentops {title}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return next(reversed(names.values()))
