# SPDX-License-Identifier: Apache-2.0
"""The segment operations on 12 atoms in 3 molecules, with PyTorch.

``idx[i]`` names the molecule of atom i and is sorted. Each step prints what an operation gives and compares
it with the same thing in plain torch.

Run it from the repository root: ``python examples/segment_ops_torch.py``
"""

from collections.abc import Callable

import torch

from segmentops.torch.segment_ops import (
    segmented_dot,
    segmented_matvec,
    segmented_max_norm,
    segmented_mean,
    segmented_mul,
    segmented_rms_norm,
    segmented_sum,
)

torch.set_printoptions(precision=4, sci_mode=False)
if torch.cuda.is_available():
    torch.set_default_device("cuda")

IDX = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2], dtype=torch.int32)  # molecules of 4, 3 and 5 atoms
MOLECULES = 3
ATOMS = torch.split(torch.arange(12), [4, 3, 5])  # the atoms of each molecule, for the comparisons

torch.manual_seed(0)
Model = Callable[[torch.Tensor], torch.Tensor]  # positions (12, 3) -> the energy of each molecule (3,)

POSITIONS = torch.randn(12, 3, dtype=torch.float64)
CHARGES = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)


def show(title: str, result: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(result, reference, rtol=1e-12, atol=1e-12)
    print(f"\n{title}, shape {tuple(result.shape)}\n{result}")


def per_molecule(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The plain torch way: a loop over molecules."""
    return torch.stack([function(atoms) for atoms in ATOMS])


def pool_atoms_to_molecules() -> None:
    total = segmented_sum(CHARGES, IDX, MOLECULES)
    show("sum: the charge of each molecule", total, per_molecule(lambda atoms: CHARGES[atoms].sum()))

    centres = segmented_mean(POSITIONS, IDX, MOLECULES)
    show("mean: the centre of each molecule", centres, per_molecule(lambda atoms: POSITIONS[atoms].mean(dim=0)))

    inner = segmented_dot(POSITIONS, POSITIONS, IDX, MOLECULES)
    show("dot: sum of <x[i], x[i]>", inner, per_molecule(lambda atoms: (POSITIONS[atoms] ** 2).sum()))

    rms = segmented_rms_norm(POSITIONS, IDX, MOLECULES)
    reference = per_molecule(lambda atoms: (POSITIONS[atoms] ** 2).sum(dim=1).mean().sqrt())
    show("rms_norm: root mean square distance from the origin", rms, reference)

    longest = segmented_max_norm(POSITIONS, IDX, MOLECULES)
    reference = per_molecule(lambda atoms: POSITIONS[atoms].norm(dim=1).max())
    show("max_norm: distance of the farthest atom", longest, reference)


def push_molecules_to_atoms() -> None:
    factors = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    scaled = segmented_mul(POSITIONS, factors, IDX, MOLECULES)
    show("mul: one factor a molecule", scaled, POSITIONS * factors[IDX, None])

    # out[i] = m[idx[i]]ᵀ v[i]: row vectors times the matrix of their molecule
    matrices = torch.linalg.qr(torch.randn(3, 3, 3, dtype=torch.float64)).Q
    turned = segmented_matvec(POSITIONS, matrices, IDX, MOLECULES)
    show("matvec: one matrix a molecule", turned, torch.einsum("nk,nkj->nj", POSITIONS, matrices[IDX]))


# A model: each molecule is pulled to a radius of gyration of 1, E = ½ (R - 1)²


def energies(positions: torch.Tensor) -> torch.Tensor:
    centres = segmented_mean(positions, IDX, MOLECULES)
    radius = segmented_rms_norm(positions - centres[IDX], IDX, MOLECULES)
    return 0.5 * (radius - 1.0) * (radius - 1.0)


def plain_energies(positions: torch.Tensor) -> torch.Tensor:
    radii = [positions[atoms].var(dim=0, correction=0).sum().sqrt() for atoms in ATOMS]
    return 0.5 * (torch.stack(radii) - 1.0) ** 2


def forces(model: Model, create_graph: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    positions = POSITIONS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(positions).sum(), positions, create_graph=create_graph)
    return positions, -gradient


def hessian_vector_product(model: Model, vector: torch.Tensor) -> torch.Tensor:
    """The derivative of the gradient along a vector. A loss on forces needs the same second derivative."""
    positions, force = forces(model, create_graph=True)
    (product,) = torch.autograd.grad(-(force * vector).sum(), positions)
    return product


def differentiate() -> None:
    show("energies", energies(POSITIONS), plain_energies(POSITIONS))

    _, force = forces(energies)
    show("forces", force, forces(plain_energies)[1])
    # The energy does not change when a molecule moves as a whole, so its forces add up to 0.
    show("sum of the forces on each molecule", segmented_sum(force, IDX, MOLECULES), torch.zeros(3, 3).double())

    vector = torch.randn(12, 3, dtype=torch.float64)
    product = hessian_vector_product(energies, vector)
    show("Hessian-vector product", product, hessian_vector_product(plain_energies, vector))


def compile_the_model() -> None:
    # Inductor, the default backend, needs a C++ compiler; aot_eager does not
    compiled = torch.compile(energies, fullgraph=True, backend="aot_eager")
    show("energies, compiled", compiled(POSITIONS), plain_energies(POSITIONS))
    torch.testing.assert_close(forces(compiled)[1], forces(energies)[1], rtol=1e-12, atol=1e-12)
    print("\nforces, compiled: equal to the forces above")


if __name__ == "__main__":
    pool_atoms_to_molecules()
    push_molecules_to_atoms()
    differentiate()
    compile_the_model()
    print("\nall equal to plain torch")
