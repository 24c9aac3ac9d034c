# SPDX-License-Identifier: Apache-2.0
"""Whether the storage of tensors holds their elements.

A storage can be freed or shrunk after a tensor was made (`untyped_storage().resize_`, as sharded training does between
forward and backward), and torch reads such a tensor all the same. So whoever reads memory asks here first; the fast
route asks the same natively (`plain_call.h`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..ops.table import Operation
from . import _compat


def check(op: str, label: str, tensor: Tensor) -> None:
    """Raise RuntimeError unless the tensor, which has a storage, has all of its elements there."""
    if not tensor.numel():
        return
    last = tensor.storage_offset() + sum([(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)])
    needed, held = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
    if held < needed:
        raise RuntimeError(
            f"{op}: {label} has no memory for its shape {tuple(tensor.shape)}: it needs {needed} bytes of its storage, "
            f"which has {held}. The storage was freed or resized after the tensor was made."
        )


def check_operands(op: Operation, tensors: Iterable[Any], idx: Any) -> None:
    """`check` of the operands of an operation and its idx."""
    for label, tensor in zip((*[o.name for o in op.operands], "idx"), (*tensors, idx), strict=True):
        check(f"segmented_{op.name}", label, tensor)


def check_real(op: Operation, tensors: Iterable[Any], idx: Any) -> None:
    """`check_operands` of those that have memory, for what may be wrapped by transforms, fake or traced."""
    for label, tensor in zip((*[o.name for o in op.operands], "idx"), (*tensors, idx), strict=True):
        real = _compat.memory_of(tensor)
        if real is not None:
            check(f"segmented_{op.name}", label, real)
