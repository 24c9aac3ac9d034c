# SPDX-License-Identifier: Apache-2.0
"""A force evaluation as a graph: warm up, synchronise, capture, replay. Runs on CUDA, and without a GPU on the CPU.

Springs to the centre of each molecule: D[s] = sum of |r_i - c_s|^2, c the mean of the positions, and the forces
-1/2 dD/dr from a backward launcher. The guide is ``docs/userguide/cuda_graphs.md``.

Run it from the repository root: ``python examples/cuda_graphs.py``
"""

import pathlib
import tempfile
import time

import numpy as np
import torch
import warp as wp

from segmentops.torch.segment_ops import segmented_mul, segmented_rms_norm
from segmentops.warp import segmented_broadcast, segmented_dot, segmented_mean
from segmentops.warp_backward import segmented_dot_backward

wp.config.log_level = 30  # Warp prints its banner to stdout
DEVICE = "cuda:0" if wp.is_cuda_available() and torch.cuda.is_available() else "cpu"
ATOMS, MOLECULES = 1200, 60


class Springs:
    """All arrays of the evaluation: a graph keeps their addresses, so they are made once."""

    def __init__(self, idx: np.ndarray) -> None:
        self.idx = wp.array(idx, dtype=wp.int32, device=DEVICE)
        self.positions, self.away, self.centres_of_atoms, self.forces, self.unused = (
            wp.zeros(ATOMS, dtype=wp.vec3d, device=DEVICE) for _ in range(5)
        )
        self.centres, self.sums = (wp.zeros(MOLECULES, dtype=wp.vec3d, device=DEVICE) for _ in range(2))
        self.counts = wp.zeros(MOLECULES, dtype=wp.int32, device=DEVICE)
        self.squares = wp.zeros(MOLECULES, dtype=wp.float64, device=DEVICE)
        self.minus_one = wp.full(MOLECULES, -1.0, dtype=wp.float64, device=DEVICE)

    def evaluate(self) -> None:
        segmented_mean(self.positions, self.idx, self.sums, self.counts, self.centres)
        segmented_broadcast(self.centres, self.idx, self.centres_of_atoms)
        wp.launch(subtract, ATOMS, [self.positions, self.centres_of_atoms, self.away], device=DEVICE)
        segmented_dot(self.away, self.away, self.idx, self.squares)
        # c is where D is smallest, so it contributes nothing: forces are -(r - c).
        segmented_dot_backward(self.minus_one, self.away, self.away, self.idx, self.forces, self.unused)


@wp.kernel(enable_backward=False)
def subtract(a: wp.array(dtype=wp.vec3d), b: wp.array(dtype=wp.vec3d), out: wp.array(dtype=wp.vec3d)):
    i = wp.tid()
    out[i] = a[i] - b[i]


def with_launchers(idx: np.ndarray, positions: np.ndarray) -> None:
    springs = Springs(idx)

    springs.evaluate()  # 1. warm up: kernels are compiled, which a capture does not allow
    wp.synchronize_device(DEVICE)  # 2. nothing may be on its way when the capture begins
    with wp.ScopedCapture(device=DEVICE) as capture:  # 3. capture
        springs.evaluate()
    springs.positions.assign(positions)  # 4. new data at the old addresses
    wp.capture_launch(capture.graph)
    squares, forces = springs.squares.numpy(), springs.forces.numpy()  # numpy() synchronises

    away = positions - np.stack([positions[idx == s].mean(0) for s in range(MOLECULES)])[idx]
    np.testing.assert_allclose(squares, np.bincount(idx, (away**2).sum(1)), rtol=1e-12)
    np.testing.assert_allclose(forces, -away, rtol=1e-9, atol=1e-12)
    print(f"Warp launchers on {DEVICE}: D of molecule 0 is {squares[0]:.6f}")

    for title, run in (("launched", springs.evaluate), ("replayed", lambda: wp.capture_launch(capture.graph))):
        wp.synchronize_device(DEVICE)
        start = time.perf_counter()
        for _ in range(200):
            run()
        wp.synchronize_device(DEVICE)  # without it only the launches are timed, not the work
        print(f"  {title}: {(time.perf_counter() - start) / 200 * 1e6:.0f} us an evaluation")


def saved_and_loaded(idx: np.ndarray, positions: np.ndarray) -> None:
    """A graph in a file: another process replays it without this package."""
    springs = Springs(idx)
    springs.evaluate()
    with wp.ScopedCapture(device=DEVICE, apic=True) as capture:
        springs.evaluate()
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "springs")
        wp.capture_save(capture.graph, path, {"positions": springs.positions}, {"squares": springs.squares})
        graph = wp.capture_load(path + ".wrp", device=DEVICE)
        graph.set_param("positions", wp.array(positions, dtype=wp.vec3d, device=DEVICE))
        wp.capture_launch(graph)
        squares = wp.zeros(MOLECULES, dtype=wp.float64, device=DEVICE)
        graph.get_param("squares", squares)
        springs.positions.assign(positions)
        springs.evaluate()
        np.testing.assert_array_equal(squares.numpy(), springs.squares.numpy())
    print("  saved, loaded and replayed with the same bits")


def training_step(idx: torch.Tensor) -> None:
    """A whole training step as one graph on CUDA; on the CPU, where torch has no graphs, the same step eagerly."""
    torch.manual_seed(0)
    x = torch.randn(ATOMS, 3, device=DEVICE)
    target = torch.ones(MOLECULES, device=DEVICE)
    scale = torch.full((MOLECULES,), 2.0, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.SGD([scale], lr=0.02)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        y = segmented_mul(x, scale, idx, MOLECULES)
        loss = (segmented_rms_norm(y, idx, MOLECULES) - target).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    if DEVICE == "cpu":
        run, loss = step, step()
    else:
        side = torch.cuda.Stream()  # torch wants the warm-up on a stream of its own
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()  # compiles, looks at idx once, makes the gradients that stay
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        run = graph.replay
    for _ in range(100):
        found = run()
    loss = loss if found is None else found
    print(f"a training step on {DEVICE}: loss after 100 more is {loss.item():.2e}")
    assert loss.item() < 1e-3


def main() -> None:
    rng = np.random.default_rng(0)
    idx = np.sort(rng.integers(0, MOLECULES, ATOMS)).astype(np.int32)
    positions = rng.standard_normal((ATOMS, 3))
    with_launchers(idx, positions)
    saved_and_loaded(idx, positions)
    training_step(torch.from_numpy(idx).to(DEVICE))


if __name__ == "__main__":
    main()
