# SPDX-License-Identifier: Apache-2.0
"""DTensors: replicated ones are computed on by every process; a segment may cross shards, so sharded ones are refused.

Derivatives may come sharded or as partial sums, by what was done to the result; they are replicated first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import _process
from . import _compat

_DISTRIBUTED = "torch.distributed.tensor"  # takes long to import: whoever has a DTensor has done it
_registered: list[Any] = _process.kept("the module of DTensors", list)


def prepare(targets: Iterable[Any]) -> None:
    """Tell torch what these operations of the dispatcher do with DTensors, as soon as there can be one."""
    module = sys.modules.get(_DISTRIBUTED)
    if module is None or _registered:
        return
    _registered.append(module)
    for target in targets:
        _compat.register_torch_dispatch(target.name(), module.DTensor, _replicated)


def _replicated(cls: Any, target: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
    """An operation of the dispatcher on whole tensors, the same in every process."""
    module = sys.modules[_DISTRIBUTED]
    mesh = next(a.device_mesh for a in args if isinstance(a, module.DTensor))
    whole = [module.Replicate()] * mesh.ndim
    with torch.no_grad():
        outs = target(
            *[a.redistribute(placements=whole).to_local() if isinstance(a, module.DTensor) else a for a in args]
        )
        found = [
            module.DTensor.from_local(o, mesh, whole, run_check=False)
            for o in (outs if isinstance(outs, (tuple, list)) else [outs])
        ]
    return tuple(found) if isinstance(outs, (tuple, list)) else found[0]


def check(op: str, labels: Sequence[str], tensors: Sequence[Any], idx: Any) -> Any:
    """idx as this process has it; raises ValueError for a DTensor that is sharded, or beside other tensors."""
    module = sys.modules.get(_DISTRIBUTED)
    if module is None or not any([isinstance(t, module.DTensor) for t in (*tensors, idx)]):
        return idx
    for label, tensor in zip((*labels, "idx"), (*tensors, idx), strict=True):
        if not isinstance(tensor, module.DTensor):
            if tensor is not idx:  # the same in every process, and it has no gradient
                raise ValueError(f"{op}: {label} must be a DTensor, as other arguments are; see distribute_tensor")
        elif any(p.is_shard() for p in tensor.placements):
            cure = f"{label}.redistribute(placements=[Replicate()] * {label}.device_mesh.ndim)"
            raise ValueError(
                f"{op}: {label} is a DTensor sharded as {tensor.placements}, and a segment may have elements in "
                f"several shards. Replicate it with {cure}"
            )
    return idx.to_local() if isinstance(idx, module.DTensor) else idx
