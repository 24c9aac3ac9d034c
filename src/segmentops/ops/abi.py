# SPDX-License-Identifier: Apache-2.0
"""What native code is called with: names of functions and their arguments, derived from the table.

An argument named n, m, k, j or mode is an int64; every other one is an address. `Engine` makes the ctypes prototypes
from this and `_build` the C++ table of function pointers, so the order of functions stands once.
"""

from __future__ import annotations

from .table import OPERATIONS, Operand

# In every part: the thread pool, the way in for Python built-ins (`enter` is called by the interpreter only), where the
# fields of the structures are that these take, what asks for large pages, and where scratch comes from.
MEMORY = {"pages": "madvise", "heap": "malloc free"}
COMMON = {
    "configure": "parallel rank size",
    "attach": "interpreter",
    "enter": "self args count",
    "layout": "",
} | MEMORY

# What each part of the engine has beside the operations.
MODULES: dict[str, dict[str, str]] = {
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

# The scalar types of C++. No by-product and no counter is kept in half precision; half types are compiled apart.
FULL = {"f32": "float", "f64": "double"}
HALF = {"f16": "seg::float16", "bf16": "seg::bfloat16"}
INTEGERS = frozenset({"n", "m", "k", "j", "mode"})


def arguments(name: str) -> tuple[str, ...]:
    """The arguments of a function; of an operation: operands, idx, results, what else it writes, sizes, mode."""
    if name not in OPERATIONS:
        return tuple(next(module[name] for module in MODULES.values() if name in module).split())
    op = OPERATIONS[name]
    arrays = [*op.operands, *op.results, *op.extras]
    names = [a.name for a in arrays]
    names[len(op.operands) : len(op.operands)] = ["idx"]
    return (*names, "n", "m", "k", *["j"] * op.matrices, "mode")


def after_results(name: str) -> tuple[Operand | None, ...]:
    """What an operation's function takes after its results: scratch, or None for what the caller need not want."""
    return tuple(None if extra.optional else extra for extra in OPERATIONS[name].extras)


def exports(table: str) -> list[tuple[str, str, str]]:
    """The functions of a table in order: (Python name, C++ expression, arguments).

    A table is a module; ``half_<module>`` has its operations for float16 and bfloat16, ``xla_<table>`` those of any of
    these as XLA FFI handlers.
    """
    if table.startswith("xla_"):
        typed = exports(table.removeprefix("xla_"))
        handlers = [(name, f"seg::xla::handler<&{f}>", "frame") for name, f, _ in typed if "<" in f]
        return [(name, f"seg::{name}", arguments) for name, arguments in MEMORY.items()] + handlers
    module = table.removeprefix("half_")
    half = module != table
    untyped = COMMON if half else COMMON | MODULES[module]
    rows = [(name, f"seg::{name}", given) for name, given in untyped.items()]
    for op in OPERATIONS.values():
        if op.module == module:
            types = HALF if half else FULL
            rows += [(f"{op.name}_{t}", f"seg::{op.name}<{c}>", " ".join(arguments(op.name))) for t, c in types.items()]
    return rows


def table_of(name: str, suffix: str) -> str:
    """The table that has operation `name` for data of a type, ``"f32"``."""
    return "half_" * (suffix in HALF) + OPERATIONS[name].module
