# SPDX-License-Identifier: Apache-2.0
"""Each operation as a plain Warp program says it: one thread per element, atomic sums, gradients by `wp.Tape`."""

import functools
from typing import Any

import warp as wp

TYPES = {  # a scalar, an element of three, a matrix of a segment
    "float32": (wp.float32, wp.vec3f, wp.mat33f),
    "float64": (wp.float64, wp.vec3d, wp.mat33d),
}
# Kernels in order, each with the array whose length is its number of threads, and its arguments: names as of the
# launchers. The last argument is written; where it is in ATOMIC, it is added to or raised.
STEPS = {
    "sum": ["add x: x idx out"],
    "mean": ["add x: x idx sums", "count idx: idx counts", "divide out: sums counts out"],
    "dot": ["add_inner x: x y idx out"],
    "rms_norm": ["add_inner x: x x idx sum_sq", "count idx: idx counts", "root out: sum_sq counts out"],
    "max_norm": ["largest x: x idx out"],
    "mul": ["scale x: x y idx out"],
    "matvec": ["transform v: v m idx out"],
}
ATOMIC = ("add", "count", "add_inner", "largest")


@functools.cache
def kernels(dtype: str, width: int) -> dict[str, Any]:
    scalar, vector, matrix = TYPES[dtype]
    element = scalar if width == 1 else vector
    inner = wp.mul if width == 1 else wp.dot
    Index, Scalars, Elements = wp.array(dtype=wp.int32), wp.array(dtype=scalar), wp.array(dtype=element)
    Matrices = wp.array(dtype=matrix)

    def add(x: Elements, idx: Index, out: Elements):
        i = wp.tid()
        wp.atomic_add(out, idx[i], x[i])

    def count(idx: Index, out: Index):
        wp.atomic_add(out, idx[wp.tid()], 1)

    def add_inner(x: Elements, y: Elements, idx: Index, out: Scalars):
        i = wp.tid()
        wp.atomic_add(out, idx[i], inner(x[i], y[i]))

    def largest(x: Elements, idx: Index, out: Scalars):
        i = wp.tid()
        wp.atomic_max(out, idx[i], wp.length(x[i]))

    def divide(x: Elements, counts: Index, out: Elements):
        s = wp.tid()
        out[s] = x[s] / scalar(wp.max(counts[s], 1))

    def root(x: Scalars, counts: Index, out: Scalars):
        s = wp.tid()
        out[s] = wp.sqrt(x[s] / scalar(wp.max(counts[s], 1)))

    def scale(x: Elements, y: Scalars, idx: Index, out: Elements):
        i = wp.tid()
        out[i] = x[i] * y[idx[i]]

    def transform(v: Elements, m: Matrices, idx: Index, out: Elements):
        i = wp.tid()
        out[i] = wp.transpose(m[idx[i]]) * v[i]

    functions = [add, count, add_inner, divide, root, scale]
    if width > 1:
        functions += [largest, transform]
    return {f.__name__: wp.kernel(f, module="unique") for f in functions}  # of a module each: compiled when launched


class Program:
    """An operation on arrays that go by the launchers' names."""

    def __init__(self, operation: str, dtype: str, width: int, arrays: dict[str, Any]) -> None:
        of = kernels(dtype, width)
        self.arrays, self.steps, self.zeroed = arrays, [], []
        for step in STEPS[operation]:
            head, _, names = step.partition(": ")
            kernel, leader = head.split()
            arguments = [arrays[name] for name in names.split()]
            self.steps.append((of[kernel], arrays[leader].shape, arguments))
            if kernel in ATOMIC:
                self.zeroed.append(arguments[-1])

    def forward(self) -> None:
        for array in self.zeroed:
            array.zero_()
        for kernel, dim, arguments in self.steps:
            wp.launch(kernel, dim, arguments, device=arguments[0].device)

    def backward(self, cotangent: wp.array) -> None:
        for array in self.arrays.values():
            if array.requires_grad:
                array.grad.zero_()
        tape = wp.Tape()
        with tape:
            self.forward()
        tape.backward(grads={self.arrays["out"]: cotangent})
