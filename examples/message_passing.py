# SPDX-License-Identifier: Apache-2.0
"""SchNet of torch_geometric with its sums over neighbours and over molecules replaced by `segmented_sum`.

The network is torch_geometric's own; only the aggregation module of each layer and the readout are exchanged. Both
networks have the same weights and get the same molecules. The program compares energies, forces and the gradients
of a loss on both with respect to every weight (a second derivative) in float64, then takes the processor times of both
in float32, in turns, and exits with status 1 if a comparison fails.

Run it from the repository root: ``python examples/message_passing.py`` (needs ``pip install torch_geometric``)
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import Aggregation, MessagePassing, SchNet

from segmentops.torch.segment_ops import segmented_sum

CUTOFF = 4.0


class SegmentedSum(Aggregation):
    """The sum over neighbours, for edges that are sorted by their target."""

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        assert dim in (0, -x.dim()), "segments run along the first dimension"
        return segmented_sum(x, index, dim_size)


def with_segmented_sums(network: SchNet) -> SchNet:
    """A copy of the network, its weights included, that sums by `segmented_sum`."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, MessagePassing):
            module.aggr_module = SegmentedSum()
    network.readout = SegmentedSum()
    return network


# Molecules: chains of atoms at distances of about 1, folded at random


class Molecules:
    def __init__(self, count: int, dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(0)
        sizes = torch.randint(10, 40, (count,), generator=random)
        self.number = torch.randint(1, 9, (int(sizes.sum()),), generator=random)
        self.molecule = torch.repeat_interleave(torch.arange(count), sizes)
        steps = torch.randn(len(self.number), 3, generator=random, dtype=torch.float64)
        steps = steps / steps.norm(dim=1, keepdim=True) + 0.5
        walks = [walk.cumsum(0) for walk in steps.split(sizes.tolist())]
        self.position = torch.cat(walks).to(dtype)
        self.energy = torch.randn(count, 1, generator=random, dtype=torch.float64).to(dtype)
        # Neighbours, sorted by target; the same for both networks
        near = [torch.cdist(walk, walk) < CUTOFF for walk in walks]
        starts = (sizes.cumsum(0) - sizes).tolist()
        pairs = [(n.fill_diagonal_(False).nonzero() + s) for n, s in zip(near, starts, strict=True)]
        target, source = torch.cat(pairs).unbind(1)
        self.edges = torch.stack([source, target])

    def graph(self, position: Tensor, molecule: Tensor) -> tuple[Tensor, Tensor]:
        """What SchNet asks for instead of torch_geometric's own search, which needs a compiled package."""
        source, target = self.edges
        return self.edges, (position[source] - position[target]).norm(dim=1)


def schnet(molecules: Molecules, width: int, dtype: torch.dtype) -> SchNet:
    torch.manual_seed(0)
    return SchNet(width, width, 3, 32, CUTOFF, interaction_graph=molecules.graph).to(dtype)


# What a user does with it


def energies(network: SchNet, molecules: Molecules) -> Tensor:
    with torch.no_grad():
        return network(molecules.number, molecules.position, molecules.molecule)


def forces(network: SchNet, molecules: Molecules, graph: bool = False) -> tuple[Tensor, Tensor]:
    position = molecules.position.clone().requires_grad_()
    energy = network(molecules.number, position, molecules.molecule)
    (gradient,) = torch.autograd.grad(energy.sum(), position, create_graph=graph)
    return energy, -gradient


def training_step(network: SchNet, molecules: Molecules) -> dict[str, Tensor]:
    """Gradients of a loss on energies and forces, by weight."""
    network.zero_grad()
    energy, force = forces(network, molecules, graph=True)
    loss = (energy - molecules.energy).square().mean() + force.square().mean()
    loss.backward()
    return {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}


JOBS: dict[str, Callable] = {"energies": energies, "energies and forces": forces, "training step": training_step}


# Comparisons


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over the largest number."""
    scale = theirs.abs().max()
    assert scale > 0, "nothing to compare"
    return float((ours - theirs).abs().max() / scale)


def compare(count: int, width: int) -> list[tuple[str, float]]:
    molecules = Molecules(count, torch.float64)
    theirs = schnet(molecules, width, torch.float64)
    ours = with_segmented_sums(theirs)
    found = [("energies", error(energies(ours, molecules), energies(theirs, molecules)))]
    found += [("forces", error(forces(ours, molecules)[1], forces(theirs, molecules)[1]))]
    a, b = training_step(ours, molecules), training_step(theirs, molecules)
    assert a.keys() == b.keys()
    found += [("gradient of a loss on both, worst weight", max(error(a[name], b[name]) for name in b))]
    return found


def measure(count: int, width: int, repeats: int) -> list[tuple[str, float, float]]:
    """Median processor times in ms of each job, torch_geometric's and ours, taken in turns on one thread."""
    torch.set_num_threads(1)
    molecules = Molecules(count, torch.float32)
    theirs = schnet(molecules, width, torch.float32)
    networks = (theirs, with_segmented_sums(theirs))
    print(
        f"\n{count} molecules, {len(molecules.number)} atoms, {molecules.edges.shape[1]} edges, width {width}, "
        f"one thread; median of {repeats}"
    )
    found = [_times("the sums alone, forward and backward", _sums(molecules, width), networks, molecules, repeats)]
    return found + [_times(name, job, networks, molecules, repeats) for name, job in JOBS.items()]


def _sums(molecules: Molecules, width: int) -> Callable:
    messages = torch.randn(molecules.edges.shape[1], width, requires_grad=True)
    cotangent = torch.randn(len(molecules.number), width)

    def job(network: SchNet, molecules: Molecules) -> None:
        aggregation = network.interactions[0].conv.aggr_module
        out = aggregation(messages, molecules.edges[1], dim_size=len(molecules.number))
        torch.autograd.grad(out, messages, cotangent)

    return job


def _times(
    name: str, job: Callable, networks: tuple[nn.Module, nn.Module], molecules: Molecules, repeats: int
) -> tuple[str, float, float]:
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for network, times in zip(networks, seconds, strict=True):
            start = time.process_time()
            job(network, molecules)
            times.append(time.process_time() - start)
    theirs, ours = (1e3 * statistics.median(times[1:]) for times in seconds)
    return name, theirs, ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--molecules", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    tolerance = 1e-10
    failed = 0
    print(f"{'SchNet, segmented_sum against torch_geometric':45} {'error':>9} {'tolerance':>10}")
    for name, found in compare(min(options.molecules, 20), min(options.width, 32)):
        wrong = not found <= tolerance
        failed += wrong
        print(f"{name:45} {found:9.1e} {tolerance:10.0e} {'FAILED' if wrong else ''}".rstrip())
    rows = measure(options.molecules, options.width, options.repeats)
    print(f"{'':45} {'PyG, ms':>9} {'ours, ms':>9} {'ratio':>7}")
    for name, theirs, ours in rows:
        print(f"{name:45} {theirs:9.2f} {ours:9.2f} {theirs / ours:7.2f}")
    print(f"\n{3 - failed} of 3 comparisons passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
