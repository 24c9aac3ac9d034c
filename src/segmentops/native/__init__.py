# SPDX-License-Identifier: Apache-2.0
"""The CPU engine: C++ headers compiled at run time by the Clang inside Warp.

`load` gives the functions, `threads` the number of threads to call them with. What the functions compute and which
arrays they take is in `ops.abi` and in the headers under `include/segment`; `rule.h` states what fixes their bits.
"""

from ._engine import Engine, NativeBuildError, load
from ._threads import PAYS_FROM, threads

__all__ = ["PAYS_FROM", "Engine", "NativeBuildError", "load", "threads"]
