# SPDX-License-Identifier: Apache-2.0
"""Segment operations at work on real molecules, in JAX.

The molecules, references, tables and checks of `molecules.py`, from which data and report come. What differs is here:
the model in JAX, its derivatives, `jit`, batches padded to a fixed size, and molecules in `vmap`.

Run it from the repository root: ``python examples/molecules_jax.py``
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ase
import jax
import jax.numpy as jnp
import numpy as np
from ase.units import Debye
from molecules import CUTOFF, EPSILON, SHOWN, SIGMA, Check, ase_calculator, ase_forces, check_table, collect
from molecules import Data as TorchData
from molecules import make_batch as make_torch_batch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from segmentops.jax import ffi_targets
from segmentops.jax.segment_ops import (
    segmented_dot,
    segmented_matvec,
    segmented_max_norm,
    segmented_mean,
    segmented_mul,
    segmented_rms_norm,
    segmented_sum,
)

# Data


class Pairs(NamedTuple):
    """All ordered pairs (i, j), i != j, of atoms of the same molecule, sorted by i."""

    atom: jax.Array  # (P,) int32: i
    molecule: jax.Array  # (P,) int32: the molecule of i and j
    reverse: jax.Array  # (P,) where the pair (j, i) stands


class Batch(NamedTuple):
    """Some molecules as one list of atoms."""

    positions: jax.Array  # (N, 3) Å
    idx: jax.Array  # (N,) int32: the molecule of each atom
    pairs: Pairs


class Data(NamedTuple):
    """What every check reads."""

    names: Sequence[str]
    molecules: Sequence[ase.Atoms]
    charges: jax.Array  # (N,) e, GFN2-xTB
    atom_energies: jax.Array  # (N,) Hartree
    energies: np.ndarray  # (M,) Hartree
    batch: Batch
    centred: jax.Array  # (N, 3) Å: positions relative to the molecule's centre
    rotations: jax.Array  # (M, 3, 3)

    @property
    def count(self) -> int:
        return len(self.names)

    def split(self, per_atom: jax.Array) -> list[np.ndarray]:
        """An array of all atoms as one array a molecule."""
        return np.split(np.asarray(per_atom), np.cumsum([len(atoms) for atoms in self.molecules])[:-1])

    def water(self, per_molecule: jax.Array) -> float:
        return float(per_molecule[self.names.index("H2O")])


def make_batch(molecules: Sequence[ase.Atoms], dtype: str = "float64") -> Batch:
    batch = make_torch_batch(molecules)
    pairs = Pairs(*(jnp.asarray(tensor.cpu().numpy()) for tensor in batch.pairs[:3]))
    positions = jnp.asarray(batch.positions.cpu().numpy(), dtype)
    return Batch(positions, jnp.asarray(batch.idx.cpu().numpy()), pairs)


def convert(data: TorchData) -> Data:
    batch = make_batch(data.molecules)
    count = len(data.names)
    centres = segmented_mean(batch.positions, batch.idx, count)
    return Data(
        names=data.names,
        molecules=data.molecules,
        charges=jnp.asarray(data.chemistry.charges),
        atom_energies=jnp.asarray(data.chemistry.atom_energies),
        energies=data.chemistry.energies,
        batch=batch,
        centred=batch.positions - centres[batch.idx],
        rotations=jnp.asarray(data.rotations.cpu().numpy()),
    )


# The model


def pair_energies(positions: jax.Array, pairs: Pairs) -> jax.Array:
    """Half the Lennard-Jones energy of every ordered pair, in eV, shifted to 0 at the cutoff.

    x[i] is gathered as a product with 1×3 matrices, whose gradient is a segment reduction; x[j] is the x[i] of the
    reverse pair, a permutation. A padded pair gets 0 for both, and its own distance of 1 instead of 0.
    """
    ones = jnp.ones((pairs.atom.shape[0], 1), positions.dtype)
    start = segmented_matvec(ones, positions[:, None, :], pairs.atom, positions.shape[0])
    difference = start[pairs.reverse] - start
    padding = (pairs.atom == positions.shape[0])[:, None]
    dx, dy, dz = jnp.where(padding, 1.0, difference).T
    s2 = SIGMA * SIGMA / (dx * dx + dy * dy + dz * dz)
    s6 = s2 * s2 * s2
    shift = 4 * EPSILON * ((SIGMA / CUTOFF) ** 12 - (SIGMA / CUTOFF) ** 6)
    return 0.5 * (4 * EPSILON * (s6 * s6 - s6) - shift)


def lennard_jones(positions: jax.Array, pairs: Pairs, count: int) -> jax.Array:
    """The energy of each molecule, (M,) in eV."""
    return segmented_sum(pair_energies(positions, pairs), pairs.molecule, count)


def energies_and_forces(positions: jax.Array, pairs: Pairs, count: int) -> tuple[jax.Array, jax.Array]:
    def total(positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        energies = lennard_jones(positions, pairs, count)
        return energies.sum(), energies

    (_, energies), gradient = jax.value_and_grad(total, has_aux=True)(positions)
    return energies, -gradient


compiled = partial(jax.jit, static_argnames="count")(energies_and_forces)


def pad(batch: Batch, count: int, atoms: int, pairs: int) -> Batch:
    """The batch in arrays of fixed sizes: idx of padding is the number of segments."""
    more_atoms, more_pairs = atoms - batch.idx.shape[0], pairs - batch.pairs.atom.shape[0]

    def fill(array: jax.Array, value: int) -> jax.Array:
        return jnp.pad(array, (0, more_pairs), constant_values=value)

    return Batch(
        jnp.pad(batch.positions, ((0, more_atoms), (0, 0))),
        jnp.pad(batch.idx, (0, more_atoms), constant_values=count),
        Pairs(fill(batch.pairs.atom, atoms), fill(batch.pairs.molecule, count), fill(batch.pairs.reverse, 0)),
    )


# Checks. Each returns its worst error over all atoms or molecules.


def worst(result: jax.Array, reference: jax.Array | np.ndarray | Sequence[float]) -> float:
    return float(np.max(np.abs(np.asarray(result) - np.asarray(reference))))


def point_charge_dipoles(data: Data) -> jax.Array:
    """Sum of charge times position, (M, 3) in Debye."""
    return segmented_sum(data.charges[:, None] * data.batch.positions, data.batch.idx, data.count) / Debye


def net_charge(data: Data) -> Check:
    largest = float(jnp.abs(segmented_sum(data.charges, data.batch.idx, data.count)).max())
    return Check("sum: net charge, largest", largest, "e", largest, 1e-10)


def total_energy(data: Data) -> Check:
    energies = segmented_sum(data.atom_energies, data.batch.idx, data.count)
    return Check("sum: GFN2-xTB energy, H2O", data.water(energies), "Hartree", worst(energies, data.energies), 1e-10)


def mean_charge(data: Data) -> Check:
    mean = segmented_mean(data.charges, data.batch.idx, data.count)
    error = worst(mean, [charges.mean() for charges in data.split(data.charges)])
    return Check("mean: mean charge, largest", float(jnp.abs(mean).max()), "e", error, 1e-14)


def dipole(data: Data) -> Check:
    dipoles = point_charge_dipoles(data)
    per_molecule = zip(data.split(data.charges), data.split(data.batch.positions), strict=True)
    error = worst(dipoles, np.array([q @ x for q, x in per_molecule]) / Debye)
    value = data.water(jnp.linalg.norm(dipoles, axis=1))
    return Check("sum: point-charge dipole, H2O", value, "Debye", error, 1e-12)


def radius_of_gyration(data: Data) -> Check:
    radius = segmented_rms_norm(data.centred, data.batch.idx, data.count)
    error = worst(radius, [np.sqrt(x.var(axis=0).sum()) for x in data.split(data.batch.positions)])
    return Check("rms_norm: radius of gyration, H2O", data.water(radius), "Å", error, 1e-12)


def farthest_atom(data: Data) -> Check:
    radius = segmented_max_norm(data.centred, data.batch.idx, data.count)
    error = worst(radius, [np.linalg.norm(x, axis=1).max() for x in data.split(data.centred)])
    return Check("max_norm: atom farthest from centre, H2O", data.water(radius), "Å", error, 1e-12)


def overlap(data: Data) -> Check:
    rotated = segmented_matvec(data.centred, data.rotations, data.batch.idx, data.count)
    overlaps = segmented_dot(data.centred, rotated, data.batch.idx, data.count)
    per_molecule = zip(data.split(data.centred), np.asarray(data.rotations), strict=True)
    error = worst(overlaps, [np.einsum("nk,kj,nj->", x, matrix, x) for x, matrix in per_molecule])
    return Check("dot: overlap with rotated copy, H2O", data.water(overlaps), "Å²", error, 1e-12)


def rotation(data: Data) -> Check:
    rotated = segmented_matvec(data.batch.positions, data.rotations, data.batch.idx, data.count)
    per_molecule = zip(data.split(data.batch.positions), np.asarray(data.rotations), strict=True)
    error = worst(rotated, np.concatenate([x @ matrix for x, matrix in per_molecule]))
    return Check("matvec: rotated positions, largest", float(jnp.abs(rotated).max()), "Å", error, 1e-12)


def scaling(data: Data) -> Check:
    factors = jnp.linspace(0.9, 1.1, data.count)
    scaled = segmented_mul(data.centred, factors, data.batch.idx, data.count)
    per_molecule = zip(data.split(data.centred), factors.tolist(), strict=True)
    error = worst(scaled, np.concatenate([x * factor for x, factor in per_molecule]))
    return Check("mul: scaled positions, largest", float(jnp.abs(scaled).max()), "Å", error, 0.0)


def pooled_energy(data: Data) -> Check:
    energies = lennard_jones(data.batch.positions, data.batch.pairs, data.count)
    error = worst(energies, [ase_calculator().get_property("energy", atoms) for atoms in data.molecules])
    return Check("LJ energy against ASE, H2O", data.water(energies), "eV", error, 1e-12)


def pooled_forces(data: Data) -> Check:
    _, forces = energies_and_forces(data.batch.positions, data.batch.pairs, data.count)
    error = worst(forces, ase_forces(tuple(data.names)))
    return Check("LJ forces against ASE, largest", float(jnp.abs(forces).max()), "eV/Å", error, 1e-11)


def second_derivative(data: Data) -> Check:
    """Forward over reverse, against a five-point difference of forces."""
    positions, pairs = data.batch.positions, data.batch.pairs
    vector = jnp.asarray(np.random.default_rng(1).normal(size=positions.shape))
    step = 2e-4  # Å

    def forces_at(steps: jax.Array | int) -> jax.Array:
        return compiled(positions + steps * step * vector, pairs, data.count)[1]

    reference = -(forces_at(-2) - forces_at(2) - 8 * (forces_at(-1) - forces_at(1))) / (12 * step)
    product = -jax.jvp(lambda x: energies_and_forces(x, pairs, data.count)[1], (positions,), (vector,))[1]
    value, error = float(jnp.abs(product).max()), worst(product, reference)
    return Check("LJ Hessian·vector against differences, largest", value, "eV/Å²", error, 1e-6)


def compiled_forces(data: Data) -> Check:
    _, forces = compiled(data.batch.positions, data.batch.pairs, data.count)
    _, reference = energies_and_forces(data.batch.positions, data.batch.pairs, data.count)
    error = worst(forces, reference)
    return Check("LJ forces under jit, largest", float(jnp.abs(forces).max()), "eV/Å", error, 1e-11)


def padded_forces(data: Data) -> Check:
    batch = pad(data.batch, data.count, atoms=1024, pairs=8192)
    energies, forces = compiled(batch.positions, batch.pairs, data.count)
    reference = compiled(data.batch.positions, data.batch.pairs, data.count)
    real = len(data.batch.idx)
    error = max(worst(energies, reference[0]), worst(forces[:real], reference[1]), float(jnp.abs(forces[real:]).max()))
    return Check("LJ forces, padded to 1024 atoms, largest", float(jnp.abs(forces).max()), "eV/Å", error, 1e-11)


def singles(data: Data, dtype: str) -> list[Batch]:
    """Each molecule as a batch of its own, all padded to the same size."""
    atoms = max(map(len, data.molecules))
    return [pad(make_batch([molecule], dtype), 1, atoms, atoms * (atoms - 1)) for molecule in data.molecules]


def mapped_energies(data: Data) -> Check:
    """One molecule a row, padded to the largest: vmap over idx, too."""
    rows = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles(data, "float64"))
    energies = jax.jit(jax.vmap(lambda b: lennard_jones(b.positions, b.pairs, 1)[0]))(rows)
    error = worst(energies, lennard_jones(data.batch.positions, data.batch.pairs, data.count))
    return Check("LJ energy, one molecule a row of vmap, H2O", data.water(energies), "eV", error, 1e-12)


def same_bits(dtype: str, data: Data) -> Check:
    """Molecules whose energy or forces differ in any bit between the batch and one of their own, run eagerly.

    A compiler may contract the arithmetic around the operations, and not always in the same way.
    """
    whole = make_batch(data.molecules, dtype)
    energies, forces = map(np.asarray, energies_and_forces(whole.positions, whole.pairs, data.count))
    differing = 0
    for energy, single, in_batch in zip(energies, singles(data, dtype), data.split(forces), strict=True):
        alone = energies_and_forces(single.positions, single.pairs, 1)
        same = np.asarray(alone[0])[0].tobytes() == energy.tobytes()
        differing += not (same and np.asarray(alone[1])[: len(in_batch)].tobytes() == in_batch.tobytes())
    value = f"{data.count - differing} of {data.count}"
    return Check(f"LJ alone = in batch, bit for bit, {dtype}", value, "molecules", float(differing), 0.0)


def same_bits_float64(data: Data) -> Check:
    return same_bits("float64", data)


def same_bits_float32(data: Data) -> Check:
    return same_bits("float32", data)


CHECKS: tuple[Callable[[Data], Check], ...] = (
    net_charge,
    total_energy,
    mean_charge,
    dipole,
    radius_of_gyration,
    farthest_atom,
    overlap,
    rotation,
    scaling,
    pooled_energy,
    pooled_forces,
    second_derivative,
    compiled_forces,
    padded_forces,
    mapped_energies,
    same_bits_float64,
    same_bits_float32,
)


# The report


def molecule_table(data: Data) -> Table:
    idx, batch = data.batch.idx, data.batch
    columns = (
        ("net charge\ne", segmented_sum(data.charges, idx, data.count), "+.0e"),
        ("E GFN2-xTB\nHartree", segmented_sum(data.atom_energies, idx, data.count), ".6f"),
        ("dipole, charges\nDebye", jnp.linalg.norm(point_charge_dipoles(data), axis=1), ".3f"),
        ("R gyration\nÅ", segmented_rms_norm(data.centred, idx, data.count), ".4f"),
        ("R max\nÅ", segmented_max_norm(data.centred, idx, data.count), ".4f"),
        ("E LJ\neV", lennard_jones(batch.positions, batch.pairs, data.count), ".5f"),
    )
    table = Table(title=f"{len(SHOWN)} of {data.count} molecules", title_justify="left")
    table.add_column("molecule")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for name in SHOWN:
        at = data.names.index(name)
        table.add_row(name, *(format(float(values[at]), spec) for _, values, spec in columns))
    return table


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 110)
    started = time.perf_counter()
    console.print("Loading the native engine; the first run compiles it.")
    console.print(f"{len(ffi_targets())} FFI handlers")
    data = convert(collect(console))
    atoms, pairs = len(data.batch.idx), len(data.batch.pairs.atom)
    console.print(f"{data.count} molecules, {atoms} atoms, {pairs} ordered pairs, {jax.default_backend()}\n")
    console.print(molecule_table(data))
    checks = [check(data) for check in track(CHECKS, "checks", console=console)]
    console.print(check_table(checks))
    failed = [check.name for check in checks if not check.passed]
    seconds = time.perf_counter() - started
    console.print(f"{len(checks) - len(failed)} of {len(checks)} checks passed, {seconds:.1f} s")
    for name in failed:
        console.print(f"[bold red]failed:[/] {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
