# SPDX-License-Identifier: Apache-2.0
"""The benchmark's cells on Warp arrays: chains of launchers on arrays that are allocated once.

`backward` is the forward launcher and the backward one, `second` those and the double backward one. Rivals are plain
Warp programs, and PyTorch's own operations on tensors of the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobs_torch
import rivals_warp
import torch
import warp as wp
from cells import ORDERS, Cell, Data, Job, Jobs
from timing import clock  # noqa: F401  part of what a framework's module offers

from segmentops import warp as segment_ops
from segmentops import warp_backward as segment_ops_backward
from segmentops.kernels.signatures import SIGNATURES

OPERATIONS = tuple(rivals_warp.STEPS)


def about(device: str) -> str:
    wp.init()
    if device == "cuda":  # all on one stream; torch's default one cannot be captured
        torch.cuda.set_stream(wp.stream_to_torch(wp.get_stream("cuda")))
    return f"warp {wp.__version__}, {jobs_torch.about(device)}"


def can(cell: Cell) -> bool:
    return cell.width in ((3,) if cell.operation == "rms_norm" else (1, 3)) and cell.dtype in rivals_warp.TYPES


def launchers(operation: str, order: str) -> list[str]:
    name = "segmented_" + operation
    saves = name + "_forward_precompute"
    first = saves if order != "forward" and saves in SIGNATURES else name
    return [first, name + "_backward", name + "_double_backward"][: ORDERS.index(order) + 1]


def operands(cell: Cell, data: Data) -> list[str]:
    return [argument.name for argument in SIGNATURES["segmented_" + cell.operation][: len(data.inputs)]]


def arrays(cell: Cell, data: Data, device: str, names: list[str], **options: Any) -> dict[str, Any]:
    """All arrays that these launchers take, and M, by name."""
    scalar, vector, matrix = rivals_warp.TYPES[cell.dtype]
    element = scalar if cell.width == 1 else vector
    types = {"S": scalar, "K": scalar, "A": matrix, "i": wp.int32} | dict.fromkeys("TV", element)
    found: dict[str, Any] = {"M": cell.m}
    for argument in (a for name in names for a in SIGNATURES[name] if a.type):
        size, dtype = (cell.n if argument.dimension == "n" else cell.m), types[argument.type]
        found.setdefault(argument.name, wp.zeros(size, dtype=dtype, device=device, **options))
    cotangents = [name for name in found if name.startswith("gg_")]
    values = {"idx": data.idx.astype("int32"), "g_out": data.cotangent}
    values |= zip(operands(cell, data), data.inputs, strict=True)
    values |= zip(cotangents, data.moving, strict=False)
    for name in found.keys() & values.keys():
        found[name].assign(values[name])
    return found


def results(order: str, leaves: list[str], found: dict[str, Any]) -> Callable[[], tuple]:
    """What a job gives, in the order of torch's: the result, gradients, or second gradients and the cotangent's."""
    gradients = ["grad_" + {"m": "M"}.get(leaf, leaf) for leaf in leaves]
    names = {
        "forward": ["out"],
        "backward": gradients,
        "second": [*(g + "_extra" for g in gradients), next((n for n in found if n.startswith("grad_g_out")), "")],
    }[order]
    return lambda: tuple(found.get(name) for name in names)


def ours(cell: Cell, data: Data, device: str) -> Job:
    names = launchers(cell.operation, cell.order)
    found = arrays(cell, data, device, names)
    modules = (segment_ops, segment_ops_backward)
    calls = [
        (next(getattr(m, name) for m in modules if hasattr(m, name)), [found[a.name] for a in SIGNATURES[name]])
        for name in names
    ]
    result = results(cell.order, operands(cell, data), found)

    def run() -> object:
        for launcher, arguments in calls:
            launcher(*arguments)
        return result()

    return run


def plain(cell: Cell, data: Data, device: str) -> dict[str, Job]:
    if cell.order == "second":  # a tape differentiates once
        return {}
    leaves = operands(cell, data)
    found = arrays(cell, data, device, ["segmented_" + cell.operation], requires_grad=cell.order == "backward")
    del found["M"]
    program = rivals_warp.Program(cell.operation, cell.dtype, cell.width, found)
    if cell.order == "forward":

        def forward() -> object:
            program.forward()
            return (found["out"],)

        return {"warp kernel": forward}
    cotangent = wp.clone(found["out"])
    cotangent.assign(data.cotangent)

    def backward() -> object:
        program.backward(cotangent)
        return tuple(found[leaf].grad for leaf in leaves)

    return {"warp kernel and tape": backward}


def jobs(cell: Cell, device: str) -> Jobs:
    data = cell.data()
    theirs = jobs_torch.jobs(cell, device)
    source, target = (wp.zeros(cell.largest(), dtype=rivals_warp.TYPES[cell.dtype][0], device=device) for _ in range(2))
    return Jobs(
        ours(cell, data, device),
        plain(cell, data, device) | {f"torch {name}": job for name, job in theirs.rivals.items()},
        lambda: wp.copy(target, source),
    )
