# SPDX-License-Identifier: Apache-2.0
"""Every list of operations lists the same ones: the table, what each binding offers, oracles, benchmark, documents."""

import importlib
import pathlib
import re
import sys

import pytest
from oracles import OPS

from segmentops.ops.table import OPERATIONS, PUBLIC

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = {"segmented_" + name for name in PUBLIC}
MODULES = ("", ".torch", ".torch.segment_ops", ".jax", ".jax.segment_ops", ".warp", ".warp_backward")


def test_oracles():
    assert {op.name for op in OPS} == NAMES
    for op in OPS:
        arrays = OPERATIONS[op.short]
        assert [a.name for a in op.args] == list(arrays.public)
        assert [a.kind[0] for a in op.args] == [{"n": "e", "m": "s"}[o.lead] for o in arrays.operands]
        assert [i for i in range(len(op.args))] == list(arrays.differentiable)


@pytest.mark.parametrize("binding", ["torch", "jax"])
def test_bindings(binding, monkeypatch):
    pytest.importorskip(binding)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / binding))
    module = importlib.import_module(f"segmentops.{binding}")
    assert set(module.segment_ops.__all__) == NAMES
    assert set(module.__all__) >= NAMES
    battery = importlib.import_module({"torch": "compositions", "jax": "jax_battery"}[binding])
    compositions = getattr(battery, "COMPOSITIONS", vars(battery))
    assert {name for name in compositions if name.startswith("segmented_")} == NAMES


@pytest.mark.parametrize("binding", ["torch", "jax"])
def test_benchmark(binding, monkeypatch):
    pytest.importorskip(binding)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "segment_ops"))
    cells, rivals = (importlib.import_module(name) for name in ("cells", f"rivals_{binding}"))
    ours = rivals.ANY_ORDER if binding == "torch" else rivals.RIVALS
    assert set(ours) - {"mul_chain"} == set(cells.SHAPES) - {"mul_chain"} == set(PUBLIC)


def test_readme():
    rows = re.findall(r"^\| `(segmented_\w+)\(", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(rows) == NAMES and len(rows) == len(NAMES)


@pytest.mark.parametrize("binding", ["torch", "jax"])
def test_matrix_of_transforms(binding):
    header = re.search(r"^\| transform \|(.*)\|$", (ROOT / f"docs/transforms_{binding}.md").read_text(), re.MULTILINE)
    assert header and {name.strip() for name in header[1].split("|")} == set(PUBLIC)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_shows_its_public_names(name):
    module = importlib.import_module("segmentops" + name)
    assert sorted(dir(module)) == sorted(module.__all__)
    assert module is sys.modules["segmentops" + name]
