# SPDX-License-Identifier: Apache-2.0
"""Segment operations at work on real molecules.

The 162 atoms and molecules of the G2 set (``ase.collections.g2``) go through the library as one batch of
860 atoms. Reference values come from GFN2-xTB (``tblite``), from ASE's Lennard-Jones calculator and from
NumPy, each run on one molecule at a time. The program prints every comparison with its error and tolerance,
writes two charts into ``out/``, and exits with status 1 if a comparison fails.

Run it from the repository root: ``python examples/molecules.py``
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Read when OpenMP loads. By default its threads spin while they wait, and beside other busy processes the many
# small parallel loops of tblite then take a minute instead of a second.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import ase
import numpy as np
import torch
from ase.calculators.lj import LennardJones
from ase.collections import g2
from ase.units import Bohr, Debye
from matplotlib import pyplot as plt
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tblite.interface import Calculator

import segmentops
from segmentops.torch.segment_ops import (
    segmented_dot,
    segmented_matvec,
    segmented_max_norm,
    segmented_mean,
    segmented_mul,
    segmented_rms_norm,
    segmented_sum,
)

plt.switch_backend("Agg")  # files only, no display

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OUT = Path("out")

# One Lennard-Jones species for all elements: a test of the pooling, not a force field. The cutoff is far
# beyond the largest molecule (5.6 Å), so it removes no pair; like ASE, the model shifts each pair by its
# energy there.
EPSILON = 0.1  # eV
SIGMA = 1.0  # Å
CUTOFF = 20.0  # Å

# The molecules in the table and the bar chart
SHOWN = ("H2O", "NH3", "CH4", "HF", "CO2", "LiF", "O3", "CH3OH", "CH3CN", "C6H6")


# Data


class Pairs(NamedTuple):
    """All ordered pairs (i, j), i != j, of atoms of the same molecule, sorted by i."""

    atom: torch.Tensor  # (P,) int32: i
    molecule: torch.Tensor  # (P,) int32: the molecule of i and j; sorted, since i is
    reverse: torch.Tensor  # (P,) int64: where the pair (j, i) stands
    num_atoms: int
    num_molecules: int


class Batch(NamedTuple):
    """Some molecules as one list of atoms."""

    positions: torch.Tensor  # (N, 3) Å
    idx: torch.Tensor  # (N,) int32: the molecule of each atom
    num_segments: int
    pairs: Pairs


class Chemistry(NamedTuple):
    """GFN2-xTB, one molecule at a time."""

    charges: np.ndarray  # (N,) e, Mulliken
    atom_energies: np.ndarray  # (N,) Hartree
    energies: np.ndarray  # (M,) Hartree
    dipoles: np.ndarray  # (M, 3) Debye, with the atomic dipoles


class Data(NamedTuple):
    """What every check reads."""

    names: Sequence[str]
    molecules: Sequence[ase.Atoms]
    chemistry: Chemistry
    batch: Batch
    centred: torch.Tensor  # (N, 3) Å: positions relative to the molecule's centre
    rotations: torch.Tensor  # (M, 3, 3)


class Check(NamedTuple):
    """One comparison; value, error and tolerance are in the same unit."""

    name: str
    value: float | str
    unit: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


def to_tensor(array: np.ndarray | Sequence[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.as_tensor(np.asarray(array), dtype=dtype, device=DEVICE)


def make_pairs(counts: np.ndarray) -> Pairs:
    """The pairs of molecules with these numbers of atoms.

    In a molecule of n atoms, the pair (i, j) is number i (n - 1) + j - [j > i].
    """
    atom, reverse = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    first_atom = first_pair = 0
    for n in counts:
        i, j = np.nonzero(~np.eye(n, dtype=bool))
        atom.append(first_atom + i)
        reverse.append(first_pair + j * (n - 1) + i - (i > j))
        first_atom += n
        first_pair += n * (n - 1)
    return Pairs(
        atom=to_tensor(np.concatenate(atom), torch.int32),
        molecule=to_tensor(np.repeat(np.arange(len(counts)), counts * (counts - 1)), torch.int32),
        reverse=to_tensor(np.concatenate(reverse), torch.int64),
        num_atoms=int(counts.sum()),
        num_molecules=len(counts),
    )


def make_batch(molecules: Sequence[ase.Atoms], dtype: torch.dtype = torch.float64) -> Batch:
    counts = np.array([len(atoms) for atoms in molecules])
    return Batch(
        positions=to_tensor(np.concatenate([atoms.positions for atoms in molecules]), dtype),
        idx=to_tensor(np.repeat(np.arange(len(counts)), counts), torch.int32),
        num_segments=len(counts),
        pairs=make_pairs(counts),
    )


def run_xtb(molecules: Sequence[ase.Atoms], console: Console) -> Chemistry:
    """GFN2-xTB single points; unpaired electrons as the G2 set gives them."""
    charges, atom_energies, energies, dipoles = [], [], [], []
    for atoms in track(molecules, "GFN2-xTB", console=console):
        unpaired = round(abs(atoms.get_initial_magnetic_moments().sum()))
        calculator = Calculator("GFN2-xTB", atoms.numbers, atoms.positions / Bohr, charge=0.0, uhf=unpaired)
        calculator.set("verbosity", 0)
        result = calculator.singlepoint()
        charges.append(result.get("charges"))
        atom_energies.append(result.get("energies"))
        energies.append(float(result.get("energy")))
        dipoles.append(result.get("dipole") * Bohr / Debye)
    return Chemistry(np.concatenate(charges), np.concatenate(atom_energies), np.array(energies), np.array(dipoles))


def random_rotations(count: int) -> torch.Tensor:
    """Orthogonal matrices of determinant 1, from the QR decomposition of random ones."""
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(count, 3, 3)))
    return to_tensor(q * np.linalg.det(q)[:, None, None])


def collect(console: Console) -> Data:
    names = list(g2.names)
    molecules = [g2[name] for name in names]
    batch = make_batch(molecules)
    centres = segmented_mean(batch.positions, batch.idx, batch.num_segments)
    return Data(
        names=names,
        molecules=molecules,
        chemistry=run_xtb(molecules, console),
        batch=batch,
        centred=batch.positions - centres[batch.idx],
        rotations=random_rotations(batch.num_segments),
    )


# The model


def displacements(positions: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """x[j] - x[i] for every pair (i, j): the value of positions[j] - positions[i].

    The gradient of plain indexing is an index_add, whose order of additions is not fixed on every device.
    Written as a product with 1×3 matrices, the gather of x[i] has a segment reduction as its gradient. x[j]
    is the x[i] of the reverse pair, a permutation.
    """
    ones = positions.new_ones((pairs.atom.shape[0], 1))
    start = segmented_matvec(ones, positions[:, None, :], pairs.atom, pairs.num_atoms)
    return start[pairs.reverse] - start


def pair_energies(positions: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Half the Lennard-Jones energy of every ordered pair, in eV, shifted to 0 at the cutoff.

    Powers are products: torch's vectorised pow differs in the last bit from the pow that it uses for the rest
    of an array, so that a molecule's energy would depend on its place in the batch.
    """
    dx, dy, dz = displacements(positions, pairs).unbind(1)
    s2 = SIGMA * SIGMA / (dx * dx + dy * dy + dz * dz)
    s6 = s2 * s2 * s2
    shift = 4 * EPSILON * ((SIGMA / CUTOFF) ** 12 - (SIGMA / CUTOFF) ** 6)
    return 0.5 * (4 * EPSILON * (s6 * s6 - s6) - shift)


def lennard_jones(positions: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """The energy of each molecule, (M,) in eV."""
    return segmented_sum(pair_energies(positions, pairs), pairs.molecule, pairs.num_molecules)


Model = Callable[[torch.Tensor, Pairs], torch.Tensor]


def energies_and_forces(model: Model, positions: torch.Tensor, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    positions = positions.detach().requires_grad_()
    energies = model(positions, pairs)
    (gradient,) = torch.autograd.grad(energies.sum(), positions)
    return energies.detach(), -gradient


def hessian_vector_product(positions: torch.Tensor, pairs: Pairs, vector: torch.Tensor) -> torch.Tensor:
    """d²E/dx² · vector, (N, 3) in eV/Å²."""
    positions = positions.detach().requires_grad_()
    energies = lennard_jones(positions, pairs)
    (gradient,) = torch.autograd.grad(energies.sum(), positions, create_graph=True)
    (product,) = torch.autograd.grad((gradient * vector).sum(), positions)
    return product


def compile_backend() -> str:
    """Inductor needs a C++ compiler and, for its wrapper, Python's headers."""
    compilers = filter(None, (os.environ.get("CXX"), "g++", "clang++", "cl"))
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return "inductor" if any(map(shutil.which, compilers)) and headers.exists() else "aot_eager"


@cache
def compiled_lennard_jones() -> Model:
    return torch.compile(lennard_jones, fullgraph=True, dynamic=False, backend=compile_backend())


@cache
def ase_calculator() -> LennardJones:
    return LennardJones(epsilon=EPSILON, sigma=SIGMA, rc=CUTOFF, smooth=False)


@cache
def ase_forces(names: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([ase_calculator().get_property("forces", g2[name]) for name in names])


# Checks. Each returns its worst error over all atoms or molecules.


def worst(result: torch.Tensor, reference: np.ndarray | Sequence[float] | torch.Tensor) -> float:
    """The largest absolute difference; NaN if there is one."""
    if isinstance(reference, torch.Tensor):
        reference = reference.cpu().numpy()
    return float(np.max(np.abs(result.cpu().numpy() - np.asarray(reference))))


def split(data: Data, per_atom: np.ndarray | torch.Tensor) -> list[np.ndarray]:
    """An array of all atoms as one array a molecule."""
    array = per_atom.cpu().numpy() if isinstance(per_atom, torch.Tensor) else per_atom
    return np.split(array, np.cumsum([len(atoms) for atoms in data.molecules])[:-1])


def water(data: Data, per_molecule: torch.Tensor) -> float:
    return float(per_molecule[data.names.index("H2O")])


def point_charge_dipoles(data: Data) -> torch.Tensor:
    """Sum of charge times position, (M, 3) in Debye."""
    batch = data.batch
    moments = to_tensor(data.chemistry.charges)[:, None] * batch.positions
    return segmented_sum(moments, batch.idx, batch.num_segments) / Debye


def net_charge(data: Data) -> Check:
    net = segmented_sum(to_tensor(data.chemistry.charges), data.batch.idx, data.batch.num_segments)
    largest = float(net.abs().max())
    return Check("sum: net charge, largest", largest, "e", largest, 1e-10)


def total_energy(data: Data) -> Check:
    energies = segmented_sum(to_tensor(data.chemistry.atom_energies), data.batch.idx, data.batch.num_segments)
    error = worst(energies, data.chemistry.energies)
    return Check("sum: GFN2-xTB energy, H2O", water(data, energies), "Hartree", error, 1e-10)


def mean_charge(data: Data) -> Check:
    mean = segmented_mean(to_tensor(data.chemistry.charges), data.batch.idx, data.batch.num_segments)
    reference = [charges.mean() for charges in split(data, data.chemistry.charges)]
    return Check("mean: mean charge, largest", float(mean.abs().max()), "e", worst(mean, reference), 1e-14)


def dipole(data: Data) -> Check:
    dipoles = point_charge_dipoles(data)
    charges, positions = split(data, data.chemistry.charges), split(data, data.batch.positions)
    reference = np.array([q @ x for q, x in zip(charges, positions, strict=True)]) / Debye
    value = water(data, dipoles.norm(dim=1))
    return Check("sum: point-charge dipole, H2O", value, "Debye", worst(dipoles, reference), 1e-12)


def radius_of_gyration(data: Data) -> Check:
    radius = segmented_rms_norm(data.centred, data.batch.idx, data.batch.num_segments)
    reference = [np.sqrt(x.var(axis=0).sum()) for x in split(data, data.batch.positions)]
    error = worst(radius, reference)
    return Check("rms_norm: radius of gyration, H2O", water(data, radius), "Å", error, 1e-12)


def farthest_atom(data: Data) -> Check:
    radius = segmented_max_norm(data.centred, data.batch.idx, data.batch.num_segments)
    reference = [np.linalg.norm(x, axis=1).max() for x in split(data, data.centred)]
    error = worst(radius, reference)
    return Check("max_norm: atom farthest from centre, H2O", water(data, radius), "Å", error, 1e-12)


def overlap(data: Data) -> Check:
    batch = data.batch
    rotated = segmented_matvec(data.centred, data.rotations, batch.idx, batch.num_segments)
    overlaps = segmented_dot(data.centred, rotated, batch.idx, batch.num_segments)
    reference = [
        np.einsum("nk,kj,nj->", x, matrix, x)
        for x, matrix in zip(split(data, data.centred), data.rotations.cpu().numpy(), strict=True)
    ]
    error = worst(overlaps, reference)
    return Check("dot: overlap with rotated copy, H2O", water(data, overlaps), "Å²", error, 1e-12)


def rotated_positions(data: Data) -> torch.Tensor:
    return segmented_matvec(data.batch.positions, data.rotations, data.batch.idx, data.batch.num_segments)


def rotation(data: Data) -> Check:
    rotated = rotated_positions(data)
    per_molecule = zip(split(data, data.batch.positions), data.rotations.cpu().numpy(), strict=True)
    error = worst(rotated, np.concatenate([x @ matrix for x, matrix in per_molecule]))  # row vectors: (mᵀ x)ᵀ
    return Check("matvec: rotated positions, largest", float(rotated.abs().max()), "Å", error, 1e-12)


def rotated_distances(data: Data) -> Check:
    before = displacements(data.batch.positions, data.batch.pairs).norm(dim=1)
    after = displacements(rotated_positions(data), data.batch.pairs).norm(dim=1)
    error = worst(after, before)
    return Check("matvec: distances after rotation, largest", float(after.max()), "Å", error, 1e-12)


def scaling(data: Data) -> Check:
    batch = data.batch
    factors = torch.linspace(0.9, 1.1, batch.num_segments, dtype=torch.float64, device=DEVICE)
    scaled = segmented_mul(data.centred, factors, batch.idx, batch.num_segments)
    per_molecule = zip(split(data, data.centred), factors.tolist(), strict=True)
    error = worst(scaled, np.concatenate([x * factor for x, factor in per_molecule]))
    return Check("mul: scaled positions, largest", float(scaled.abs().max()), "Å", error, 0.0)


def pooled_energy(data: Data) -> Check:
    energies = lennard_jones(data.batch.positions, data.batch.pairs)
    reference = [ase_calculator().get_property("energy", atoms) for atoms in data.molecules]
    return Check("LJ energy against ASE, H2O", water(data, energies), "eV", worst(energies, reference), 1e-12)


def pooled_atom_energies(data: Data) -> Check:
    pairs = data.batch.pairs
    energies = segmented_sum(pair_energies(data.batch.positions, pairs), pairs.atom, pairs.num_atoms)
    reference = [ase_calculator().get_property("energies", atoms) for atoms in data.molecules]
    error = worst(energies, np.concatenate(reference))
    return Check("LJ atom energies against ASE, lowest", float(energies.min()), "eV", error, 1e-12)


def pooled_forces(data: Data) -> Check:
    _, forces = energies_and_forces(lennard_jones, data.batch.positions, data.batch.pairs)
    error = worst(forces, ase_forces(tuple(data.names)))
    return Check("LJ forces against ASE, largest", float(forces.abs().max()), "eV/Å", error, 1e-11)


def second_derivative(data: Data) -> Check:
    """Against a five-point difference of forces; one displacement of the batch displaces every molecule."""
    positions, pairs = data.batch.positions, data.batch.pairs
    vector = to_tensor(np.random.default_rng(1).normal(size=tuple(positions.shape)))
    step = 2e-4  # Å

    def forces_at(steps: int) -> torch.Tensor:
        return energies_and_forces(lennard_jones, positions + steps * step * vector, pairs)[1]

    reference = (forces_at(2) - forces_at(-2) - 8 * (forces_at(1) - forces_at(-1))) / (12 * step)
    product = hessian_vector_product(positions, pairs, vector)
    value, error = float(product.abs().max()), worst(product, reference)
    return Check("LJ Hessian·vector against differences, largest", value, "eV/Å²", error, 1e-6)


def compiled_energy(data: Data) -> Check:
    energies, _ = energies_and_forces(compiled_lennard_jones(), data.batch.positions, data.batch.pairs)
    error = worst(energies, lennard_jones(data.batch.positions, data.batch.pairs))
    return Check(f"LJ energy, compiled ({compile_backend()}), H2O", water(data, energies), "eV", error, 1e-12)


def compiled_forces(data: Data) -> Check:
    _, forces = energies_and_forces(compiled_lennard_jones(), data.batch.positions, data.batch.pairs)
    _, reference = energies_and_forces(lennard_jones, data.batch.positions, data.batch.pairs)
    value, error = float(forces.abs().max()), worst(forces, reference)
    return Check(f"LJ forces, compiled ({compile_backend()}), largest", value, "eV/Å", error, 1e-11)


def same_bits(dtype: torch.dtype, data: Data) -> Check:
    """Molecules whose energy or forces differ in any bit between the batch and a batch of one."""
    whole = make_batch(data.molecules, dtype)
    energies, forces = energies_and_forces(lennard_jones, whole.positions, whole.pairs)
    differing = 0
    for name, atoms, in_batch in zip(data.names, data.molecules, split(data, forces), strict=True):
        single = make_batch([atoms], dtype)
        energy, force = energies_and_forces(lennard_jones, single.positions, single.pairs)
        batch_energy = energies[data.names.index(name)].cpu().numpy()
        same = energy.cpu().numpy().tobytes() == batch_energy.tobytes()
        differing += not (same and force.cpu().numpy().tobytes() == in_batch.tobytes())
    count = len(data.names)
    name = f"LJ alone = in batch, bit for bit, {str(dtype).removeprefix('torch.')}"
    return Check(name, f"{count - differing} of {count}", "molecules", float(differing), 0.0)


def same_bits_float64(data: Data) -> Check:
    return same_bits(torch.float64, data)


def same_bits_float32(data: Data) -> Check:
    return same_bits(torch.float32, data)


CHECKS: tuple[Callable[[Data], Check], ...] = (
    net_charge,
    total_energy,
    mean_charge,
    dipole,
    radius_of_gyration,
    farthest_atom,
    overlap,
    rotation,
    rotated_distances,
    scaling,
    pooled_energy,
    pooled_atom_energies,
    pooled_forces,
    second_derivative,
    compiled_energy,
    compiled_forces,
    same_bits_float64,
    same_bits_float32,
)


# The report


def molecule_table(data: Data) -> Table:
    batch = data.batch
    idx, count = batch.idx, batch.num_segments
    columns = (
        ("net charge\ne", segmented_sum(to_tensor(data.chemistry.charges), idx, count), "+.0e"),
        ("E GFN2-xTB\nHartree", segmented_sum(to_tensor(data.chemistry.atom_energies), idx, count), ".6f"),
        ("dipole, charges\nDebye", point_charge_dipoles(data).norm(dim=1), ".3f"),
        ("dipole, total\nDebye", to_tensor(data.chemistry.dipoles).norm(dim=1), ".3f"),
        ("R gyration\nÅ", segmented_rms_norm(data.centred, idx, count), ".4f"),
        ("R max\nÅ", segmented_max_norm(data.centred, idx, count), ".4f"),
        ("E LJ\neV", lennard_jones(batch.positions, batch.pairs), ".5f"),
    )
    table = Table(title=f"{len(SHOWN)} of {count} molecules", title_justify="left")
    table.add_column("molecule")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for name in SHOWN:
        at = data.names.index(name)
        table.add_row(name, *(format(float(values[at]), spec) for _, values, spec in columns))
    return table


def check_table(checks: Sequence[Check]) -> Table:
    table = Table(title="Checks: worst error over the whole batch, in the row's unit", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("error", justify="right")
    table.add_column("tolerance", justify="right")
    table.add_column("")
    for check in checks:
        value = check.value if isinstance(check.value, str) else f"{check.value:.6g}"
        verdict = "[green]ok[/]" if check.passed else "[bold red]FAIL[/]"
        table.add_row(check.name, value, check.unit, f"{check.error:.1e}", f"{check.tolerance:.0e}", verdict)
    return table


def plot_atoms(data: Data, path: Path) -> None:
    """Two bar charts of per-atom values, with the mean and the total of each molecule from the library."""
    panels = (
        ("Mulliken charge (e)", data.chemistry.charges, "Σ {:.2f}"),
        ("atom energy (Hartree)", data.chemistry.atom_energies, "Σ {:.3f}"),
    )
    figure, axes = plt.subplots(2, 1, figsize=(13, 8), sharex=True, layout="constrained")
    for ax, (label, values, note) in zip(axes, panels, strict=True):
        means = segmented_mean(to_tensor(values), data.batch.idx, data.batch.num_segments).tolist()
        totals = segmented_sum(to_tensor(values), data.batch.idx, data.batch.num_segments).tolist()
        per_molecule = split(data, values)
        places: list[float] = []
        symbols: list[str] = []
        for number, name in enumerate(SHOWN):
            at = data.names.index(name)
            bars = per_molecule[at]
            x = np.arange(len(bars)) + (places[-1] + 3.0 if places else 0.0)
            ax.bar(x, bars, width=0.85, color=f"C{number}")
            ax.hlines(means[at], x[0] - 0.6, x[-1] + 0.6, colors="black", linestyles="dashed", linewidth=1.3)
            total = note.format(round(totals[at], 6) + 0.0)  # + 0.0: no minus sign on a zero
            place = {"transform": ax.get_xaxis_transform(), "ha": "center"}
            ax.text(x.mean(), 1.01, f"{name}\n{total}", fontsize=9, **place)
            places.extend(x)
            symbols.extend(data.molecules[at].symbols)
        ax.axhline(0.0, color="grey", linewidth=0.6)
        ax.set_ylabel(label)
        ax.set_xticks(places, symbols)
        ax.tick_params(axis="x", length=0, labelbottom=True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.margins(x=0.01)
    figure.suptitle("GFN2-xTB atoms, coloured by molecule; dashed: segmented_mean, Σ: segmented_sum")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_forces(data: Data, path: Path) -> None:
    """Force components of all atoms against ASE, and their differences."""
    _, forces = energies_and_forces(lennard_jones, data.batch.positions, data.batch.pairs)
    ours, reference = forces.cpu().numpy().ravel(), ase_forces(tuple(data.names)).ravel()
    figure, (parity, difference) = plt.subplots(1, 2, figsize=(12, 5.4), layout="constrained")
    limit = 1.1 * np.abs(reference).max()
    parity.plot([-limit, limit], [-limit, limit], color="black", linewidth=0.8, zorder=0)
    parity.scatter(reference, ours, s=14, alpha=0.6, color="C0", linewidths=0)
    # linear in the middle, where most components lie, logarithmic outside
    parity.set_xscale("symlog", linthresh=0.1)
    parity.set_yscale("symlog", linthresh=0.1)
    parity.set(xlabel="ASE, one molecule at a time (eV/Å)", ylabel="batch, autograd (eV/Å)", aspect="equal")
    parity.set_title(f"{reference.size} Lennard-Jones force components")
    errors, sizes = np.abs(ours - reference), np.geomspace(1e-6, limit, 200)
    difference.scatter(np.abs(reference), errors, s=14, alpha=0.6, color="C1", linewidths=0)
    difference.plot(sizes, np.spacing(sizes), color="black", linewidth=0.8, label="one unit in the last place")
    difference.set_xscale("symlog", linthresh=1e-3)
    difference.set_yscale("symlog", linthresh=1e-16)
    difference.set(xlabel="|ASE| (eV/Å)", ylabel="|difference| (eV/Å)", ylim=(0, 1e-12))
    difference.set_title(f"largest difference {errors.max():.1e} eV/Å")
    difference.legend(loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


PLOTS = (
    (plot_atoms, OUT / "molecules_atoms.png"),
    (plot_forces, OUT / "molecules_forces.png"),
)


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 110)
    started = time.perf_counter()
    console.print("Loading the native engine; the first run compiles it.")
    segmentops.warmup()
    data = collect(console)
    atoms, pairs = len(data.batch.idx), len(data.batch.pairs.atom)
    console.print(f"{len(data.names)} molecules, {atoms} atoms, {pairs} ordered pairs, {DEVICE.type}\n")
    console.print(molecule_table(data))
    checks = [check(data) for check in track(CHECKS, "checks", console=console)]
    console.print(check_table(checks))

    OUT.mkdir(exist_ok=True)
    for plot, path in PLOTS:
        plot(data, path)
        console.print(f"wrote {path}")
    failed = [check.name for check in checks if not check.passed]
    seconds = time.perf_counter() - started
    console.print(f"{len(checks) - len(failed)} of {len(checks)} checks passed, {seconds:.1f} s")
    for name in failed:
        console.print(f"[bold red]failed:[/] {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
