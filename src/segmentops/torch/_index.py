# SPDX-License-Identifier: Apache-2.0
"""The verdict that an idx is valid, and its cache.

Sorted and not negative is a property of idx alone, and then its last value answers every
num_segments. So the verdict is kept by the tensor's identity, version counter and data pointer, with
the last value, and dies with the tensor (a weak reference). Nothing else that derives from idx is
ever kept.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import native
from . import _memory
from ._compat import concrete, dispatch_modes, find, tracing

_MODES = ("cached", "always", "off")

# Looking at so few elements costs less than remembering.
LOOK = 512


_LOOK_BIT = 2  # of the engine's mode: check idx in the same call


class Setting:
    """The mode, and what native code reads of it: the bits of the engine's mode, whether verdicts are kept."""

    mode = "cached"
    native = (ctypes.c_int64 * 2)(_LOOK_BIT, True)

    @classmethod
    def set(cls, mode: str) -> None:
        cls.mode = mode
        cls.native[0], cls.native[1] = 0 if mode == "off" else _LOOK_BIT, mode == "cached"


class set_index_check:  # noqa: N801  (used like torch.set_grad_enabled)
    """How eager calls check the values of idx: `"cached"` (default), `"always"` or `"off"`.

    `"cached"` looks at an idx once and again after every change that torch knows of. Writes that torch
    does not see (a Warp kernel, a NumPy view, `.data`) do not count: call `invalidate(idx)` after them,
    or choose `"always"`. With `"off"` an element whose idx is out of range belongs to no segment, and an
    unsorted idx gives unspecified values. No setting makes an access out of bounds possible.

    Sets the mode at once, for all threads; used as a context manager, it sets the old one back.

    Examples
    --------
    >>> from segmentops.torch import set_index_check
    >>> with set_index_check("always"):
    ...     pass
    """

    def __init__(self, mode: str) -> None:
        if mode not in _MODES:
            raise ValueError(f"set_index_check: mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        self.mode, self._before, self._entered = mode, [Setting.mode], False
        Setting.set(mode)

    def __enter__(self) -> set_index_check:
        if self._entered:  # once more: what is set back then is the mode of now
            self._before.append(Setting.mode)
        self._entered = True
        Setting.set(self.mode)
        return self

    def __exit__(self, *error: Any) -> None:
        Setting.set(self._before.pop())


# id -> (weak reference, version, data pointer, last value)
verdicts: dict[int, tuple[Any, int, int, int]] = {}


def invalidate(idx: Tensor) -> None:
    """Forget that `idx` was found valid: the next call looks at its values again.

    Needed after a write that torch does not see, such as one by a Warp kernel or through a NumPy view.

    Parameters
    ----------
    idx : Tensor
        The index tensor that was written to.

    Raises
    ------
    TypeError
        If `idx` is not a tensor.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch import invalidate
    >>> idx = torch.tensor([0, 0, 1], dtype=torch.int32)
    >>> idx.numpy()[1] = 1
    >>> invalidate(idx)
    """
    if not isinstance(idx, Tensor):
        raise TypeError(f"invalidate: idx must be a torch.Tensor, got {type(idx).__name__}")
    verdicts.pop(id(concrete(idx)), None)


def known(idx: Tensor, m: int) -> bool:
    """Whether idx was found valid before, unchanged since, and fits m segments."""
    entry = verdicts.get(id(idx))
    return (
        entry is not None
        and entry[0]() is idx
        and entry[1] == idx._version
        and entry[3] < m
        and entry[2] == idx.data_ptr()
    )


_NO_DISPATCH = Tensor.__torch_dispatch__
_NO_DISPATCHES = (_NO_DISPATCH, find("_C._disabled_torch_dispatch_impl"))


def readable(idx: Tensor) -> bool:
    """Whether idx has values that may be looked at now.

    Not if it is fake, traced or a batch of vmap. Looking at one on a CUDA device runs torch's operations and
    waits for them: not in a capture, and not where something is active that would see them.
    """
    idx = concrete(idx)
    if tracing() is not None or getattr(type(idx), "__torch_dispatch__", _NO_DISPATCH) not in _NO_DISPATCHES:
        return False  # a subclass may hold no data of its own
    try:
        if not (idx.data_ptr() or not idx.numel()):
            return False
    except RuntimeError:
        return False
    if idx.is_cpu:
        return True
    if not idx.is_cuda or dispatch_modes():
        return False
    return not torch.cuda.is_current_stream_capturing()


class _Memory:
    """Memory of an idx on the CPU, for NumPy to look at: no mode and no transform sees an operation of torch."""

    def __init__(self, idx: Tensor) -> None:
        size = idx.element_size()
        self.idx = idx  # keeps the memory alive
        self.__array_interface__ = {
            "shape": (idx.shape[0],),
            "typestr": f"=i{size}",
            "data": (idx.data_ptr(), True),
            "strides": (idx.stride(0) * size,),
            "version": 3,
        }


def _numbers(idx: Tensor) -> np.ndarray:
    """The values of an idx on the CPU; a negation may be pending."""
    values = np.asarray(_Memory(idx))
    return -values if idx.is_neg() else values


def _valid(idx: Tensor, m: int) -> tuple[bool, int]:
    """Whether idx on the CPU is sorted with values in [0, m), and its last value."""
    n, wide = idx.shape[0], idx.dtype is torch.int64
    if idx.is_contiguous() and not idx.is_neg():
        integer = ctypes.c_int64 if wide else ctypes.c_int32
        pointer = idx.data_ptr()
        last = integer.from_address(pointer + (n - 1) * idx.element_size()).value
    else:
        values = np.ascontiguousarray(_numbers(idx))
        pointer, last = values.ctypes.data, int(values[-1])
    return native.load().check(pointer, n, m, int(wide) | native.threads(n) << 8) < 0, last


def _ends(idx: Tensor) -> tuple[bool, int, int]:
    """Whether idx is sorted, its first value and its last: one synchronisation on a CUDA device."""
    with torch.no_grad():
        idx = idx.detach()
        falls = (idx[1:] < idx[:-1]).any()
        falls, first, last = torch.stack([falls.to(idx.dtype), idx[0], idx[-1]]).tolist()
    return not falls, first, last


def check(op: str, idx: Tensor, m: int) -> None:
    """Raise ValueError unless idx is sorted and its values lie in [0, m)."""
    mode = Setting.mode
    idx = concrete(idx)
    if mode == "off" or mode == "cached" and known(idx, m):
        return
    if not idx.numel():
        return
    _memory.check(op, "idx", idx)
    tracked = not idx.is_inference()  # an inference tensor has no version counter
    if tracked:
        version, pointer = idx._version, idx.data_ptr()  # before looking
    valid, last = _look(idx, m)
    if not valid:
        raise ValueError(explain(op, idx, m))
    if tracked and mode == "cached":
        _remember(idx, version, pointer, last)


def _look(idx: Tensor, m: int) -> tuple[bool, int]:
    """Whether idx is sorted with values in [0, m), and its last value."""
    if idx.is_cpu:
        try:
            return _valid(idx, m)
        except native.NativeBuildError:
            pass
    in_order, first, last = _ends(idx)
    return in_order and first >= 0 and last < m, last


def _remember(idx: Tensor, version: int, pointer: int, last: int) -> None:
    key = id(idx)

    def forget(ref: Any, verdicts: dict = verdicts) -> None:  # at exit the module's names may be gone
        entry = verdicts.get(key)
        if entry is not None and entry[0] is ref:  # a newer one may be there already
            del verdicts[key]

    verdicts[key] = (weakref.ref(idx, forget), version, pointer, last)


def explain(op: str, idx: Tensor, m: int) -> str:
    """What is wrong with an idx that failed the check."""
    idx = concrete(idx)
    values = _numbers(idx if idx.is_cpu else idx.detach().cpu())

    def first(wrong: np.ndarray) -> int | None:
        return int(wrong.argmax()) if wrong.any() else None

    i = first(values < 0)
    if i is not None:
        return (
            f"{op}: idx must have values in the range [0, num_segments), num_segments = {m}, but "
            f"idx[{i}] = {values[i]} is negative. Drop or renumber that element."
        )
    i = first(values >= m)
    if i is not None:
        return (
            f"{op}: idx must have values in the range [0, num_segments), num_segments = {m}, but "
            f"idx[{i}] = {values[i]}. Is num_segments too small?"
        )
    i = first(values[1:] < values[:-1])
    if i is not None:
        return (
            f"{op}: idx must be sorted, but idx[{i + 1}] = {values[i + 1]} comes after idx[{i}] = {values[i]}. "
            "Sort once and permute once: idx, order = torch.sort(idx, stable=True); x = x[order]"
        )
    return f"{op}: idx changed while it was checked"
