# SPDX-License-Identifier: Apache-2.0
"""Compiles a table of native functions with Warp's Clang and returns their addresses.

The only file that touches `wp.ModuleBuildOptions`, which Warp marks as experimental. Each table is a Warp module of
its own: its options are set once, here, and nobody redefines a kernel in it, so Warp never unloads the code that the
addresses point into. The kernel does nothing but copy a constant array of function pointers out.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import tempfile
import warnings
from collections.abc import Iterator

import warp as wp

from .. import _building, _process
from ..ops.abi import exports
from ._engine import NativeBuildError

INCLUDE = pathlib.Path(__file__).resolve().parent / "include"


@wp.func_native("for (unsigned k = 0; k < out.shape[0]; k++) out.data[k] = (unsigned long long)seg_table[k];")
def _copy_table(out: wp.array(dtype=wp.uint64)): ...  # type: ignore[valid-type]


def _export_table(out: wp.array(dtype=wp.uint64)):  # type: ignore[valid-type]
    _copy_table(out)


# name of a module -> (its source, the addresses, what keeps the code), for the life of the process. Warp unloads a
# module when another kernel of that name is loaded, and when the file of a function that it uses is imported again.
_built: dict[str, tuple[str, list[int], object]] = _process.kept("native code", dict)


def _preamble(table: str, defines: dict[str, str]) -> str:
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    lines += [f'#include "segment/table_{table}.h"', "static const void* const seg_table[] = {"]
    lines += [f"  (const void*)&{expression}," for _, expression, _ in exports(table)]
    return "\n".join([*lines, "};", ""])


def _addresses(kernel: wp.Kernel, count: int) -> list[int]:
    addresses = wp.zeros(count, dtype=wp.uint64, device="cpu")
    wp.launch(kernel, dim=1, inputs=[addresses], device="cpu", record_tape=False)
    return [int(address) for address in addresses.numpy()]


@functools.cache
def _say_why(reason: str) -> None:
    warnings.warn(
        f"segmentops compiles its CPU engine anew in each process, since Warp's kernel cache cannot be used "
        f"({reason}). WARP_CACHE_PATH names another folder for it.",
        stacklevel=2,
    )


@contextlib.contextmanager
def _cache_of_its_own() -> Iterator[None]:
    """For one build: once it is loaded, nothing reads the files again."""
    before = wp.config.kernel_cache_dir
    with tempfile.TemporaryDirectory(prefix="segmentops-") as folder:
        wp.config.kernel_cache_dir = folder
        try:
            yield
        finally:
            wp.config.kernel_cache_dir = before


def build(table: str, defines: dict[str, str] | None = None) -> list[int]:
    """Compile (or take from Warp's cache) a table and return the addresses of its functions.

    Parameters
    ----------
    table : str
        ``"core"`` or ``"second"``; with the prefix ``"half_"`` for float16 and bfloat16, and before that ``"xla_"`` for
        XLA FFI handlers.
    defines : dict of str to str, optional
        Macros defined before the headers are read. The result is then a module of its own.

    Raises
    ------
    NativeBuildError
        If Warp lacks the build options or the compilation fails.
    """
    if not hasattr(wp, "ModuleBuildOptions"):
        raise NativeBuildError(
            f"warp {wp.__version__} has no ModuleBuildOptions, through which segmentops compiles its CPU engine"
        )
    name = ".".join(["segmentops", "native", table, *(defines or {})])
    source = _preamble(table, defines or {})
    if name in _built:
        before, addresses, _ = _built[name]
        if before != source:
            raise NativeBuildError(f"this process has loaded another version of {name}: start Python again")
        return addresses
    what = "the CPU code for segment operations" + " in half precision" * ("half_" in table)
    try:
        with _building.quietly():
            _building.initialise_quietly()  # which says where the cache is
            with _building.notice(what):
                return _build(name, source, len(exports(table)))
    except Exception as error:
        raise NativeBuildError(f"the native CPU engine could not be built: {error}") from error


def _build(name: str, source: str, count: int) -> list[int]:
    options = wp.ModuleBuildOptions(
        extra_cpu_include_dirs=[str(INCLUDE)],
        extra_cpu_preamble=source,
        # Every header: one that is missing here would be compiled once and never again.
        extra_build_dependencies=[str(path) for path in sorted(INCLUDE.rglob("*.h"))],
    )
    module = wp.get_module(name)
    module.options["extra_build_options"] = options
    module.options["enable_backward"] = False
    flags = wp.config.cpu_compiler_flags
    if flags is None or flags.startswith("-march=native"):
        # Without the inlining thresholds that Warp adds, compiling takes a quarter less and the code is as fast.
        module.options["cpu_compiler_flags"] = "-march=native"
    kernel = wp.kernel(_export_table, module=module, enable_backward=False)
    lost = _building.temporary
    try:
        addresses = _addresses(kernel, count)
    except OSError as error:  # as a rule, the cache
        module.mark_modified()  # else Warp remembers the failure
        with _cache_of_its_own():
            addresses = _addresses(kernel, count)
        lost = error.strerror or str(error)
    if lost:
        _say_why(lost)
    _built[name] = source, addresses, (module, kernel, dict(module.execs))
    return addresses
