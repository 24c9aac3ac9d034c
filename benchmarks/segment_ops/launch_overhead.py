# SPDX-License-Identifier: Apache-2.0
"""What a launch costs on the host: prepared launches against `wp.launch` with `wp.from_torch`.

Runs the host code of CUDA tensors on the CPU device with so few elements that the kernel itself costs next to nothing;
on a CUDA device the driver's share, 2 to 4 microseconds a launch, comes on top. No GPU is needed.

    PYTHONPATH=src python benchmarks/segment_ops/launch_overhead.py
"""

import timeit

import torch
import warp as wp

wp.config.log_level = 30

from segmentops.kernels import _packed, launch  # noqa: E402
from segmentops.kernels.element import element  # noqa: E402
from segmentops.torch import _cuda  # noqa: E402

N, M = 12, 3


def best(function):
    """Microseconds a call: the best of repeats."""
    function()
    return min(timeit.repeat(function, number=2000, repeat=15)) / 2000 * 1e6


def main():
    x, y, out = torch.randn(N, 3), torch.randn(M), torch.empty(N, 3)
    idx = torch.arange(N, dtype=torch.int32) // 4
    kernel = element("element", "f32", "i32")["linear"]
    cpu = wp.get_device("cpu")

    def by_warp():
        arrays = [wp.from_torch(t) for t in (x, y.unsqueeze(1).expand(M, 3), out)]
        inputs = [wp.from_torch(idx), M, None, *arrays[:2], None, None, 0, None, None, None, None, arrays[2]]
        wp.launch(kernel, dim=(N, 3), inputs=inputs, device=cpu, record_tape=False)

    arrays = [wp.from_torch(t) for t in (x, y.unsqueeze(1).expand(M, 3).contiguous(), out)]
    inputs = [wp.from_torch(idx), M, None, *arrays[:2], None, None, 0, None, None, None, None, arrays[2]]
    place = _cuda.place_of(x.device)
    rows = [_cuda._index(idx, place)] + [
        launch.Rows(a, a.ptr, wp.float32, tuple(a.shape), tuple(a.strides)) for a in arrays
    ]
    prepared = [rows[0], M, None, *rows[1:3], None, None, 0, None, None, None, None, rows[3]]
    command = wp.launch(kernel, dim=(N, 3), inputs=inputs, device=cpu, record_cmd=True)

    def ready():
        wp.launch(kernel, dim=(N, 3), inputs=inputs, device=cpu, record_tape=False)

    print("one element-wise launch of 13 arguments, us")
    for title, function in (
        ("wp.from_torch of 4 tensors, wp.launch", by_warp),
        ("wp.launch of ready wp.arrays", ready),
        ("recorded command, arguments as they are", command.launch),
        ("prepared launch of ready rows", lambda: _packed.launch(kernel, (N, 3), prepared, place)),
    ):
        print(f"  {title:42s}{best(function):6.1f}")
    print("whole operations on tensors, results allocated, us: prepared, by wp.launch")
    for name, arguments in (
        ("sum", (x,)),
        ("mul", (x, y)),
        ("dot", (x, x)),
        ("rms_norm", (x,)),
        ("mul_backward", (x, x, y)),
        ("mul_double_backward", (x, y, x, x, y)),
    ):
        run = _cuda.kernel(name)
        ours = best(lambda run=run, arguments=arguments: run(*arguments, idx, M))
        supported, _packed._supported = _packed._supported, lambda: False
        theirs = best(lambda run=run, arguments=arguments: run(*arguments, idx, M))
        _packed._supported = supported
        print(f"  {name:22s}{ours:8.1f}{theirs:8.1f}")


if __name__ == "__main__":
    main()
