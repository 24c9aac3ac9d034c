# SPDX-License-Identifier: Apache-2.0
"""Launches with everything but the arguments worked out ahead.

`wp.launch` converts every argument by its type, which costs as much as a small operation takes. Here the layout of a
kernel's arguments is worked out once, for each device and block size; a launch packs its arguments with `struct` into
memory of its own, so that threads share nothing that is written.

The only file that calls Warp's private launch functions. Where one is missing, or Warp wants to see a launch (a capture
that Warp records, its debugging settings), `launch` uses `wp.launch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import warp as wp

from .. import _building
from ._registry import THREADS

try:
    from warp._src import context as _context
    from warp._src import types as _types
except ImportError:
    _context = _types = None  # type: ignore[assignment]

NEEDS = "Warp's kernels need an NVIDIA driver for CUDA 13 or later (`nvidia-smi` shows the version)"

# How kernels see an array: data, grad, shape, strides, number of dimensions, flags (Warp's array_t).
_ARRAY = struct.Struct("QQ4i4iHH4x")
ABSENT = bytes(_ARRAY.size)

# How kernels see a number; they take no others.
_NUMBERS = {wp.int32: "i", int: "i"}


def descriptor(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """An array of one to three dimensions as kernels see it, strides in bytes."""
    if len(shape) == 2:
        return _ARRAY.pack(pointer, 0, *shape, 0, 0, *strides, 0, 0, 2, 0)
    rest = (0,) * (4 - len(shape))
    return _ARRAY.pack(pointer, 0, *shape, *rest, *strides, *rest, len(shape), 0)


class Place(NamedTuple):
    """Where launches go and scratch comes from."""

    device: Any
    stream: int | None = None  # address of a CUDA stream; None: Warp's current one
    allocate: Callable[[Any, tuple[int, ...], Any], Any] | None = None  # (place, shape, dtype); None: wp.empty
    rehearsal: bool = False  # load the kernels, launch nothing
    quiet: bool = True  # Warp is not to print what it loads: the caller does not use Warp

    @property
    def is_cpu(self) -> bool:
        return self.device.is_cpu

    @property
    def is_cuda(self) -> bool:
        return self.device.is_cuda

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory that holds anything, as `launch` takes it."""
        if self.allocate is None:
            return wp.empty(shape, dtype=dtype, device=self.device)
        return self.allocate(self, shape, dtype)


def place_of(device: Any) -> Place:
    """A device of Warp's is given by users of Warp, a place by the bindings."""
    return device if type(device) is Place else Place(device, quiet=False)


@contextlib.contextmanager
def loading(place: Place) -> Iterator[None]:
    """Around whatever Warp compiles and loads; by one thread at a time."""
    if not place.quiet:
        with _building.building():
            yield
        return
    what = f"the {'GPU' if place.is_cuda else 'CPU'} code for segment operations"
    with _building.quietly(), _building.notice(what, "some seconds for each of them"):
        yield


def supported() -> bool:
    """Whether this version of Warp has the functions and structures that are used here."""
    try:
        fields = [name for name, _ in _types.array_t._fields_]
        return (
            fields == ["data", "grad", "shape", "strides", "ndim", "flags"]
            and ctypes.sizeof(_types.array_t) == _ARRAY.size
            and callable(_context._build_launch_bounds_from_tuple)
            and callable(_context._resolve_launch_block_dim)
            and hasattr(_context, "KernelHooks")
            and len(_context.runtime.core.wp_cuda_launch_kernel.argtypes) == 11
            and hasattr(_context.runtime.core, "wp_take_cpu_block_error")
        )
    except (AttributeError, TypeError):
        return False


@functools.cache
def _supported() -> bool:
    _building.initialise_quietly()  # as a rule, done before: an array is on a device
    return supported()


@functools.lru_cache(4096)
def _bounds(dim: tuple[int, ...], dimensions: int) -> Any:
    """Launch bounds; kernels read them only, so threads may share them."""
    return _context._build_launch_bounds_from_tuple(dim, dimensions)


class Packed:
    """A kernel on a device with a block size."""

    def __init__(self, kernel: wp.Kernel, device: Any, block: int) -> None:
        self.module = kernel.module.load(device, block)  # kept: its code must stay
        self.hooks = self.module.get_kernel_hooks(kernel)
        self.kernel, self.device, self.block = kernel, device, block
        self.dimensions = kernel.adj.kernel_dim
        # Natural alignment; a descriptor is a string of bytes to `struct`, so its padding is spelled out.
        offset, layout, self.offsets = 0, ["@"], []
        for argument in kernel.adj.args:
            code, size, align = ("56s", 56, 8) if _types.is_array(argument.type) else (_NUMBERS[argument.type], 4, 4)
            padding = -offset % align
            layout += [f"{padding}x"] * bool(padding) + [code]
            self.offsets.append(offset + padding)
            offset += padding + size
        self.pack = struct.Struct("".join(layout)).pack
        self.pointers = ctypes.c_void_p * (1 + len(self.offsets))

    def run(self, dim: tuple[int, ...], values: list[Any], stream: int | None) -> None:
        """Launch with descriptors (bytes) and numbers."""
        bounds = _bounds(dim, self.dimensions)
        if not bounds.size:
            return
        arguments = self.pack(*values)  # bytes: kept alive by this frame, copied or done with when the call returns
        address = ctypes.cast(arguments, ctypes.c_void_p).value
        core = _context.runtime.core
        if self.device.is_cpu:
            if self.block > 1:
                core.wp_take_cpu_block_error()
            self.hooks.forward(ctypes.byref(bounds), ctypes.c_void_p(address))
            if self.block > 1:
                error = core.wp_take_cpu_block_error()
                if error:
                    raise RuntimeError(f"{self.kernel.key}: {error.decode(errors='replace')}")
            return
        pointers = self.pointers(ctypes.addressof(bounds), *[address + offset for offset in self.offsets])
        if core.wp_cuda_launch_kernel(
            self.device.context, self.hooks.forward, bounds.size, 0, self.block, int(self.kernel.grid_stride),
            self.hooks.cluster_dim, self.hooks.forward_smem_bytes, pointers, stream, None,
        ):  # fmt: skip
            raise RuntimeError(f"{self.kernel.key} on {self.device}: {_context.runtime.get_error_string()}")


_packed: dict[tuple[wp.Kernel, str, bool], Packed] = {}


def _pack(kernel: wp.Kernel, place: Place, blocks: bool) -> Packed:
    key = kernel, place.device.alias, blocks
    with loading(place):
        if key not in _packed:  # else another thread has been here
            _packed[key] = Packed(kernel, place.device, THREADS if blocks else 1)
    return _packed[key]


def _watched() -> bool:
    """Whether Warp wants to see launches."""
    config = wp.config
    checks = config.print_launches or config.verify_cuda or getattr(config, "launch_array_access_mode", 0)
    return bool(checks) or _context.runtime._apic_capture is not None


def launch(kernel: wp.Kernel, dim: tuple[int, ...], arguments: list[Any], place: Place, tiled: bool = False) -> None:
    """Launch a kernel on numbers, arrays (`Rows`, or of Warp) and None for arrays that are absent.

    tiled: each entry of `dim` is a thread block.
    """
    device = place.device
    if not _supported() or _watched():
        return _by_warp(kernel, dim, arguments, place, tiled)
    blocks = device.is_cuda or wp.config.enable_cpu_blocks
    found = _packed.get((kernel, device.alias, blocks))
    if found is None:
        found = _pack(kernel, place, blocks)
    if place.rehearsal:
        return
    if tiled:
        dim = (*dim, found.block)
    stream = place.stream
    if stream is None and device.is_cuda:
        stream = device.stream.cuda_stream
    try:
        values = [a if type(a) is int else ABSENT if a is None else _descriptor(a) for a in arguments]
        return found.run(dim, values, stream)
    except struct.error as error:  # from packing, and from nothing else
        sizes = [a if type(a) is int else tuple(a.shape) for a in arguments if a is not None]
        raise ValueError(
            "Warp's kernels take arrays of at most 2**31 - 1 rows, columns and bytes from one to the next, "
            f"got {sizes}. Call with fewer elements."
        ) from error


def _descriptor(array: Any) -> bytes:
    if isinstance(array, wp.array):
        return descriptor(array.ptr or 0, array.shape, array.strides)
    return descriptor(array.pointer, array.shape, array.strides)


def _by_warp(kernel: wp.Kernel, dim: tuple[int, ...], arguments: list[Any], place: Place, tiled: bool) -> None:
    device = place.device
    with loading(place):
        kernel.module.load(device, THREADS if device.is_cuda or wp.config.enable_cpu_blocks else 1)
    if place.rehearsal:
        return
    stream = None if place.stream is None else wp.Stream(device, cuda_stream=place.stream)
    run = wp.launch_tiled if tiled else wp.launch
    inputs = [a.array(device) if hasattr(a, "pointer") else a for a in arguments]
    run(kernel, dim=dim, inputs=inputs, device=device, stream=stream, block_dim=THREADS, record_tape=False)
