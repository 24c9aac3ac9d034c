# SPDX-License-Identifier: Apache-2.0
"""What the native tables export: names and arguments, as data.

An argument named n, m, k, j or mode is an int64; every other one is an address. `Engine` makes the ctypes prototypes
from this table and `_build` the C++ table of function pointers, so the order of functions is written down once.
"""

from __future__ import annotations

from ..algebra import OPERATIONS, Operand

# In every table: the thread pool, the way in for Python built-ins (`enter` is called by the interpreter only), where
# the fields of the structures are that these take, what asks for large pages, and where scratch comes from.
MEMORY = {"pages": "madvise", "heap": "malloc free"}
COMMON = {
    "configure": "parallel rank size",
    "attach": "interpreter",
    "enter": "self args count",
    "layout": "",
} | MEMORY

UNTYPED: dict[str, dict[str, str]] = {
    "core": {
        "check": "idx n m mode",
        "order": "idx n k mode",
        "count": "idx counts n m mode",
    },
    "second": {},
    "plain": {
        **dict.fromkeys(("plain", "function_forward", "function_backward"), "self args count"),  # like `enter`
        "plain_layout": "",
    },
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
    "plain": {},
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


# Scratch, which the caller lends, as `algebra.SHAPES` writes arrays.
SCRATCH = {"spread": "scratch[m,k]", "rms_norm_double_backward": "inner[m]:f64 counts[m]:i32"}


def after_results(name: str) -> tuple[Operand | None, ...]:
    """What an operation's function takes after its results: scratch, or None for what the caller need not want."""
    op = OPERATIONS[name]
    arrays = [a for a in next(t[name] for t in TYPED.values() if name in t).split() if a not in INTEGERS]
    scratch = {o.name: o for o in map(Operand.parse, SCRATCH.get(name, "").split())}
    return tuple(scratch.get(a) for a in arrays[len(op.operands) + takes_idx(name) + len(op.results) :])


def takes_idx(name: str) -> bool:
    """Whether an operation's function takes idx; where not, the positions of the largest norms say everything."""
    return next("idx" in table[name].split() for table in TYPED.values() if name in table)


def exports(table: str) -> list[tuple[str, str, str]]:
    """The functions of a table in order: (Python name, C++ expression, arguments).

    The table ``half_<table>`` has the typed functions of a table for float16 and bfloat16, ``xla_<table>`` those of any
    of these as XLA FFI handlers.
    """
    if table.startswith("xla_"):
        typed = exports(table.removeprefix("xla_"))
        handlers = [(name, f"seg::xla::handler<&{f}>", "frame") for name, f, _ in typed if "<" in f]
        return [(name, f"seg::{name}", arguments) for name, arguments in MEMORY.items()] + handlers
    half = table.startswith("half_")
    untyped = COMMON if half else COMMON | UNTYPED[table]
    rows = [(name, f"seg::{name}", arguments) for name, arguments in untyped.items()]
    for name, arguments in TYPED[table.removeprefix("half_")].items():
        types = HALF if half else SUFFIXES
        rows += [(f"{name}_{suffix}", f"seg::{name}<{c}>", arguments) for suffix, c in types.items()]
    return rows
