# SPDX-License-Identifier: Apache-2.0
"""What the native tables export: names and arguments, as data.

An argument named n, m, k, j or mode is an int64; every other one is an address. `Engine` makes the ctypes prototypes
from this table and `_build` the C++ table of function pointers, so the order of functions is written down once.
"""

from __future__ import annotations

# In every table: the thread pool, and the way in for Python built-ins (`enter` is called by the interpreter only).
COMMON = {"configure": "parallel rank size", "attach": "interpreter", "enter": "self args count"}

UNTYPED: dict[str, dict[str, str]] = {
    "core": {
        "check": "idx n m mode",
        "count": "idx counts n m mode",
    },
    "second": {},
}

# Each of these exists for float32 and float64; in the table half_<name> for float16 and bfloat16. There `inv` is
# float32: no by-product and no counter is kept in half precision.
TYPED: dict[str, dict[str, str]] = {
    "core": {
        "sum": "x idx out n m k mode",
        "mean": "x idx out sums counts n m k mode",
        "broadcast": "y idx out n m k mode",
        "spread": "y idx out scratch n m k mode",
        "dot": "x y idx out n m k mode",
        "mul": "x s idx out n m k mode",
        "rms_norm": "x idx out inv sum_sq counts n m k mode",
        "rms_norm_backward": "g x inv idx gx n m k mode",
        "mul_backward": "g x s idx gx gs n m k mode",
    },
    "second": {
        "dot_add": "x y u w idx out n m k mode",
        "mul_add": "x s y t idx out n m k mode",
        "rms_norm_double_backward": "v g x inv idx gg gx inner counts n m k mode",
        "max_norm": "x idx out at n m k mode",
        "max_norm_backward": "g x at gx n m k mode",
        "max_norm_double_backward": "v g x at gg gx n m k mode",
        "matvec": "v mat idx out n m k j mode",
        "matvec_t": "g mat idx out n m k j mode",
        "matvec_add": "v a w b idx out n m k j mode",
        "outer": "u w idx out n m k j mode",
        "dot_backward": "g x y idx gx gy n m k mode",
        "matvec_backward": "g v mat idx gv gm n m k j mode",
        "mul_double_backward": "a b g x s idx gg gx gs n m k mode",
        "dot_double_backward": "a b g x y idx gg gx gy n m k mode",
        "matvec_double_backward": "a b g v mat idx gg gv gm n m k j mode",
    },
}

SUFFIXES = {"f32": "float", "f64": "double"}
HALF = {"f16": "seg::float16", "bf16": "seg::bfloat16"}
INTEGERS = frozenset({"n", "m", "k", "j", "mode"})


def takes_idx(name: str) -> bool:
    """Whether an operation's function takes idx; where not, the positions of the largest norms say everything."""
    return next("idx" in table[name].split() for table in TYPED.values() if name in table)


def exports(table: str) -> list[tuple[str, str, str]]:
    """The functions of a table in order: (Python name, C++ expression, arguments).

    The table ``xla_<table>`` has the typed functions of a table as XLA FFI handlers, ``half_<table>`` those functions
    for float16 and bfloat16.
    """
    if table.startswith("xla_"):
        typed = exports(table.removeprefix("xla_"))
        return [(name, f"seg::xla::handler<&{function}>", "frame") for name, function, _ in typed if "<" in function]
    half = table.startswith("half_")
    untyped = COMMON if half else COMMON | UNTYPED[table]
    rows = [(name, f"seg::{name}", arguments) for name, arguments in untyped.items()]
    for name, arguments in TYPED[table.removeprefix("half_")].items():
        types = HALF if half else SUFFIXES
        rows += [(f"{name}_{suffix}", f"seg::{name}<{c}>", arguments) for suffix, c in types.items()]
    return rows
