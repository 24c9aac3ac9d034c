# SPDX-License-Identifier: Apache-2.0
"""The table of `oracles` in PyTorch terms: cases, inputs, derivatives of any order."""

import itertools
import zlib
from dataclasses import dataclass

import compositions
import numpy as np
import pytest
import torch
from oracles import OPS, Op, Width

import segmentops.torch.segment_ops as segment_ops

DTYPES = (torch.float32, torch.float64)
INDEX_DTYPES = (torch.int32, torch.int64)

# Segment lengths. Between them: empty first, middle and last segments, runs across the sizes at which an
# implementation changes its ways (8, 16, 64), a single segment, segments of one element.
LENGTHS = {
    "mixed": (3, 1, 0, 2, 5),
    "empty": (0, 0, 4, 0, 1, 0, 0, 2, 0),
    "single": (6,),
    "ones": (1, 1, 1, 1),
    "sizes": (7, 8, 9, 0, 15, 16, 17, 63, 64, 65, 1, 130),
    "no elements": (0, 0, 0),
    "nothing": (),
}


@dataclass(frozen=True)
class Case:
    op: Op
    width: Width
    dtype: torch.dtype
    index_dtype: torch.dtype

    def __str__(self) -> str:
        names = (self.op.short, "x".join(map(str, self.width)) or "scalar", self.dtype, self.index_dtype)
        return "-".join(str(n).removeprefix("torch.") for n in names)

    def __call__(self, *arguments, **keywords):
        return getattr(segment_ops, self.op.name)(*arguments, **keywords)

    def composed(self, *arguments):
        return getattr(compositions, self.op.name)(*arguments)

    def oracle(self, inputs, idx, m):
        """Value and scale of the NumPy oracle, as float64 tensors."""
        arrays = [a.detach().resolve_neg().numpy() for a in inputs]
        value, scale = self.op.oracle(*arrays, idx.numpy(), m)
        return torch.from_numpy(np.asarray(value)), torch.from_numpy(np.asarray(scale))

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(self.op.name.encode()) + seed)

    def random(self, arrays, n: int, m: int, seed: int = 0, dtype: torch.dtype | None = None):
        """A tensor of random numbers for each `Array`: inputs, cotangents, tangents."""
        g = self.generator(seed)
        shapes = [a.shape(n, m, self.width) for a in arrays]
        return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype or self.dtype) for s in shapes]

    def inputs(self, n: int, m: int, seed: int = 0, grad: bool = False):
        return [a.requires_grad_(grad) for a in self.random(self.op.args, n, m, seed)]

    def weights(self, n: int, m: int, seed: int = 1):
        """Random weights for the output: with equal ones many a wrong gradient is right."""
        return self.random([self.op.out], n, m, seed)[0]

    def index(self, lengths) -> torch.Tensor:
        return make_index(lengths, self.index_dtype)

    @property
    def eps(self) -> float:
        return torch.finfo(self.dtype).eps


def make_index(lengths, dtype=torch.int32) -> torch.Tensor:
    sizes = torch.tensor(lengths, dtype=torch.long)
    return torch.repeat_interleave(torch.arange(len(lengths)), sizes).to(dtype)


def _id(value):
    return str(value) if isinstance(value, Case) else None


def over(dtypes=DTYPES, index_dtypes=INDEX_DTYPES, widths=None):
    """Parametrise a test over `case`. `widths`: how many widths of each op, the commonest first (all)."""
    chosen = [
        Case(op, width, dtype, index_dtype)
        for op in OPS
        for width in _commonest(op.widths)[:widths]
        for dtype, index_dtype in itertools.product(dtypes, index_dtypes)
    ]
    return pytest.mark.parametrize("case", chosen, ids=_id)


def _commonest(widths):
    first = [w for w in ((3,), (3, 3), (), (2, 3)) if w in widths]
    return first + [w for w in widths if w not in first]


every_case = over()
every_width = over(index_dtypes=(torch.int32,))
every_float64 = over((torch.float64,), (torch.int32,))
every_op = over((torch.float64,), (torch.int32,), widths=1)
every_op_and_dtype = over(index_dtypes=(torch.int32,), widths=1)
every_layout = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())


# ------------------------------------------------------------------ derivatives
def derivatives(function, inputs, cotangents, graph=False):
    """The value of `function(*inputs)`, then its gradients to the order for which there are cotangents.

    cotangents[0] weights the value, cotangents[k] the gradients of order k. Gradients of order k are those
    of all that the gradients of order k - 1 depend on: the inputs, then every cotangent so far. Returns a
    list of lists. graph: the last gradients get a graph too; without one, as in a training step, they may be
    computed in another way.
    """
    leaves = [a.detach().requires_grad_() for a in inputs]
    cotangents = [[c.detach().requires_grad_() for c in order] for order in cotangents]
    found = [[function(*leaves)]]
    for k, order in enumerate(cotangents):
        last = k + 1 == len(cotangents)
        live = [(y, c) for y, c in zip(found[-1], order, strict=True) if y.requires_grad]
        if not live:  # constant: every further derivative is 0
            found.append([torch.zeros_like(a) for a in leaves])
        else:
            outputs, weights = zip(*live, strict=True)
            grads = torch.autograd.grad(
                outputs, leaves, weights, create_graph=graph or not last, allow_unused=True, materialize_grads=True
            )
            found.append(list(grads))
        leaves = leaves + order
    return [[a.detach() for a in order] for order in found]


def slots(op: Op, order: int):
    """The `Array` of every cotangent of `derivatives`, by order."""
    leaves, outputs, found = list(op.args), [op.out], []
    for _ in range(order):
        found.append(outputs)
        outputs = list(leaves)
        leaves = leaves + found[-1]
    return found


def random_cotangents(case: Case, n: int, m: int, order: int, seed: int = 100):
    return [case.random(s, n, m, seed + k) for k, s in enumerate(slots(case.op, order))]


# ------------------------------------------------------------------ comparisons
def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same numbers to the last bit, signs of zeros and NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = (t.resolve_neg().contiguous().view(integers) for t in (a, b))
    return torch.equal(a, b)


def assert_within(out: torch.Tensor, value: torch.Tensor, scale: torch.Tensor, units: float):
    """|out - value| <= units * eps * scale, everywhere."""
    assert out.shape == value.shape, (tuple(out.shape), tuple(value.shape))
    error, bound = (out.double() - value).abs(), units * torch.finfo(out.dtype).eps * scale
    assert (error <= bound).all(), (error.max().item(), (error / bound.clamp(min=1e-300)).max().item())


def assert_close(a, b, rtol=1e-10, atol=1e-11):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
