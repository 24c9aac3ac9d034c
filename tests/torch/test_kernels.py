# SPDX-License-Identifier: Apache-2.0
"""The generated kernels agree with the engine's signatures: ctypes would accept one argument too many."""

import re

import pytest

from nvalchemiops.algebra import OPERATIONS
from nvalchemiops.native._signatures import TYPED
from nvalchemiops.torch import _kernels

SIGNATURES = {name: arguments.split() for table in TYPED.values() for name, arguments in table.items()}


@pytest.mark.parametrize("name", OPERATIONS)
def test_call_has_the_engines_arguments(name):
    (call,) = re.findall(r"if f\((.*)\) >= 0", _kernels.source(name))
    arguments = call.split(", ")
    expected = SIGNATURES[name]
    assert len(arguments) == len(expected)
    assert ("idx_p" in arguments) == ("idx" in expected)
    assert arguments[-len([a for a in expected if a in "nmkj" or a == "mode"]) :] == [
        a for a in expected if a in "nmkj" or a == "mode"
    ]
    operands = len(OPERATIONS[name].operands)
    assert all(a.endswith("_p") for a in arguments[:operands])
    results = [r.name for r in OPERATIONS[name].results]
    start = operands + ("idx" in expected)
    assert [a.split("_.")[0] for a in arguments[start : start + len(results)]] == results
