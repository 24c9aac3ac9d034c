# SPDX-License-Identifier: Apache-2.0
"""What belongs to the process, not to the modules of this package: a second import of them finds it again.

Compiled programs call native code and operations that were registered once and cannot be registered twice, also after
a notebook has dropped the package from `sys.modules` and imported it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_NAME = "_segment_operations_of_this_process"


def kept(what: str, make: Callable[[], Any]) -> Any:
    """The object of the process that has the name `what`, made when it is first asked for."""
    everything = vars(sys.modules.setdefault(_NAME, ModuleType(_NAME, __doc__)))
    if what not in everything:
        everything[what] = make()
    return everything[what]
