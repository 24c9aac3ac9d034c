# SPDX-License-Identifier: Apache-2.0
"""examples/message_passing.py: a network of torch_geometric with our sums in it."""

import importlib
import pathlib
import re
import sys

import pytest
import torch

pytest.importorskip("torch_geometric")  # an extra of the tests: `make test` installs it

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "message_passing.py"


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE.parent))
        return importlib.import_module(EXAMPLE.stem)


@pytest.fixture
def run(example, monkeypatch, capsys, threads):
    def main():
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--molecules=3", "--width=8", "--repeats=1"])
        return example.main(), capsys.readouterr().out

    return main


def test_same_outputs_and_gradients(run):
    status, out = run()
    assert status == 0 and "3 of 3 comparisons passed" in out
    for name in ("energies", "forces", "gradient of a loss"):
        assert re.search(rf"^{name}.* \d\.\de-\d\d +1e-10$", out, re.M)
    assert re.search(r"^training step +\d+\.\d+ +\d+\.\d+ +\d+\.\d+$", out, re.M)


def test_a_wrong_sum_fails(run, example, monkeypatch):
    right = example.segmented_sum
    monkeypatch.setattr(example, "segmented_sum", lambda x, idx, m: right(x, idx, m) * (1 + 1e-8))
    status, out = run()
    assert status == 1 and "0 of 3 comparisons passed" in out and out.count("FAILED") == 3


def test_every_aggregation_was_replaced(example):
    molecules = example.Molecules(2, torch.float32)
    network = example.with_segmented_sums(example.schnet(molecules, 8, torch.float32))
    ours = [m for m in network.modules() if isinstance(m, example.SegmentedSum)]
    assert len(ours) == 1 + len(network.interactions)  # the readout, and a convolution in each block


def test_edges_that_are_not_sorted(example):
    molecules = example.Molecules(2, torch.float32)
    molecules.edges = molecules.edges.flip(0)  # by source
    molecules.edges = molecules.edges[:, torch.randperm(molecules.edges.shape[1])]
    network = example.with_segmented_sums(example.schnet(molecules, 8, torch.float32))
    with pytest.raises(ValueError, match="sorted"):
        example.energies(network, molecules)
