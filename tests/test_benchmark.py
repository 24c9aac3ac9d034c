# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its rivals compute what ours computes, its program writes what it promises, its report sees misses."""

import csv
import importlib
import pathlib
import sys

import numpy as np
import pytest
import warp as wp

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
for name in ("torch", "jax"):
    pytest.importorskip(name)
sys.path.append(str(pathlib.Path(__file__).parent.parent / "benchmarks" / "segment_ops"))

import benchmark_segment_ops as benchmark  # noqa: E402
import report  # noqa: E402
import timing  # noqa: E402
from cells import ORDERS, SETS, WITH_ROWS_ONLY, Cell, cells  # noqa: E402

FIRST = (
    "operation, dtype, total_elements, num_segments, avg_segment_length, ours_median_ms, framework_median_ms, "
    "speedup, copy_ratio, warp_graph_median_ms, graph_speedup"
).split(", ")


def flat(result):
    """The arrays of a result, in NumPy; those that are None are left out."""
    if isinstance(result, (tuple, list)):
        return [array for part in result for array in flat(part)]
    if result is None:
        return []
    array = result.detach() if hasattr(result, "detach") else result
    return [np.array(array.numpy() if hasattr(array, "numpy") else array)]


def loaded(framework):
    module = importlib.import_module(f"jobs_{framework}")
    module.about("cpu")
    return module


@pytest.mark.parametrize(
    "framework, orders, widths",
    [("torch", ORDERS, (1, 3)), ("warp", ORDERS, (3,)), ("jax", ORDERS[2:], (3,))],  # second contains the others
)
def test_rivals_compute_the_same(framework, orders, widths):
    module = loaded(framework)
    for op in module.OPERATIONS:
        for cell in (Cell(op, order, "float64", width, 40, 20) for order in orders for width in widths):
            if not module.can(cell) or cell.width == 1 and op in WITH_ROWS_ONLY:
                continue
            jobs = module.jobs(cell, "cpu")
            ours = flat(jobs.ours())
            assert ours and jobs.rivals
            for name, rival in (jobs.rivals | jobs.others).items():
                theirs = flat(rival())
                assert len(theirs) == len(ours), (cell, name)
                for a, b in zip(ours, theirs, strict=True):
                    b = np.where(np.isfinite(b), b, a.reshape(b.shape))  # of an empty segment theirs may be NaN
                    np.testing.assert_allclose(a.reshape(b.shape), b, 1e-9, 1e-11, err_msg=f"{cell} {name}")


@pytest.mark.parametrize("framework", benchmark.FRAMEWORKS)
def test_program(framework, tmp_path, capsys):
    out = tmp_path / "results.csv"
    command = f"--framework {framework} --short --only sum --sizes 12 --seconds 0 --out {out}".split()
    benchmark.main([*command, "--minutes", "0"])
    assert out.read_text().count("\n") == 1  # a header
    benchmark.main([*command, "--plot"])
    header, *rows = csv.reader(out.open())
    assert header[:11] == FIRST and tuple(header) == benchmark.COLUMNS
    assert [row[header.index("order")] for row in rows] == list(ORDERS)
    for row in (dict(zip(header, row, strict=True)) for row in rows):
        ours, theirs = float(row["ours_median_ms"]), float(row["framework_median_ms"])
        assert float(row["speedup"]) == pytest.approx(theirs / ours, rel=0.01)
        assert float(row["copy_ratio"]) > 0 and row["rival"]
        assert bool(row["graph_speedup"]) == bool(row["warp_graph_median_ms"]) == (framework == "warp")
        assert bool(row["segment_reduce_speedup"]) == (framework == "torch" and row["order"] != "second")
    assert out.with_suffix(".png").stat().st_size > 10_000
    before = out.read_text()
    benchmark.main([*command, "--resume"])  # nothing is left to do
    assert out.read_text() == before
    out.write_text("\n".join(before.splitlines()[:2]) + "\n")
    benchmark.main([*command, "--resume"])
    assert len(benchmark.read(out)) == 3 and out.read_text().startswith("\n".join(before.splitlines()[:2]))


def test_cells_are_named_once_and_have_data():
    for name in SETS:
        found = list(cells(name, loaded("torch").OPERATIONS, ["float32", "float64"]))
        assert len(set(found)) == len(found)
    for cell in {c.distribution: c for c in reversed(found)}.values():  # of the skewed set
        assert len(cell.data().idx) == cell.n


def test_cases_of_speed_are_among_the_cells():
    """Widths near which time a scalar went up, and sums over few segments; what they are compared with, too."""
    found = list(cells("skewed", loaded("torch").OPERATIONS, ["float32"]))
    for width in (32, 34, 35, 36, 1091, 1097):
        assert {c.operation for c in found if c.width == width} >= {"sum", "mean", "dot", "rms_norm", "max_norm", "mul"}
    for dtype in ("float32", "float16"):
        assert {c.m for c in found if c.dtype == dtype and (c.operation, c.n) == ("sum", 400_000)} >= {1, 6, 24, 10_000}


def test_peers_that_are_not_installed_are_skipped_and_said(monkeypatch, capsys):
    loaded("torch")
    import peers
    import torch

    for name in ("torch_geometric", "torch_geometric.utils", "numpy_groupies"):
        monkeypatch.setitem(sys.modules, name, None)
    peers.library.cache_clear()
    assert peers.functions("sum", "forward", torch.ones(3)) == {}
    said = capsys.readouterr().out
    assert "torch_geometric: skipped" in said and "numpy_groupies: skipped" in said
    peers.library.cache_clear()


def test_hopeless_rivals_are_dropped():
    seconds = {"fast": 1.0, "near": 2.9, "far": 3.1}
    jobs = {name: lambda name=name: name for name in seconds}
    assert list(timing.hopeful(jobs, lambda run, _: seconds[run()])) == ["fast", "near"]


def test_graph_of_any_chain():
    @wp.kernel(module="unique")
    def up(x: wp.array(dtype=wp.int32)):
        x[wp.tid()] += 1

    x, launched = wp.zeros(4, dtype=wp.int32, device="cpu"), 0

    def chain():
        nonlocal launched
        launched += 1
        wp.launch(up, 4, [x], device="cpu")

    eager, replay = timing._bench_cuda_graph(chain, "cpu", 0.0)
    assert eager > 0 and replay > 0
    assert x.numpy()[0] > launched - 1  # one of them was recorded and not run; the rest are replays


def row(operation, order, n, m, ours, speedup, width=3, dtype="float32", **columns):
    found = dict.fromkeys(benchmark.COLUMNS, "") | Cell(operation, order, dtype, width, n, m).row()
    found |= {"framework": "torch", "device": "cpu", "ours_median_ms": str(ours), "speedup": str(speedup)}
    return found | {"framework_median_ms": str(ours * speedup), "copy_ratio": "1", "rival": "some"} | columns


GOOD = [
    row("sum", "forward", 12, 1, 0.001, 0.77),
    row("sum", "backward", 12, 1, 0.020, 0.76),
    row("mean", "backward", 12, 1, 0.020, 0.96),
    row("sum", "forward", 1000, 100, 0.1, 0.96, copy_ratio="9"),
    row("sum", "forward", 100_000, 50_000, 0.1, 1.43),
    row("sum", "forward", 100_000, 10_000, 0.1, 1.91, segment_reduce_speedup="0.96"),
    row("sum", "forward", 100_000, 1000, 0.1, 9, copy_ratio="2.09"),
    row("sum", "forward", 100_000, 10, 0.1, 9, copy_ratio="1.25"),
    row("mul", "forward", 100_000, 10, 0.1, 9, copy_ratio="2.09"),
    row("sum", "forward", 400_000, 10_000, 0.1, 9, 1),
    row("sum", "forward", 400_000, 6, 0.104, 9, 1),
    row("sum", "forward", 400_000, 6, 0.104, 9, 1, "float16"),
    row("sum", "forward", 100_000, 10_000, 3.2, 9, 32),
    row("sum", "forward", 91_429, 9142, 4.8, 9, 35),
]
SLOW = [  # each misses one target, and no other
    ("N = 12, forward", row("mul", "forward", 12, 1, 0.001, 0.75)),
    ("N = 12, derivatives", row("sum", "second", 12, 1, 0.022, 0.75)),
    ("N = 12, other", row("dot", "second", 12, 1, 0.020, 0.94)),
    ("N = 12, JAX", row("sum", "backward", 12, 1, 0.020, 0.94, framework="jax")),
    ("N from 1000", row("sum", "second", 10_000, 1000, 0.1, 0.94)),
    ("length below 10", row("sum", "backward", 100_000, 50_000, 0.1, 1.4)),
    ("length from 10", row("sum", "backward", 1_000_000, 100_000, 0.1, 1.9)),
    ("ready lengths", row("mean", "forward", 100_000, 10_000, 0.1, 9, segment_reduce_speedup="0.94")),
    ("length from 1000", row("dot", "forward", 1_000_000, 100, 0.1, 9, copy_ratio="1.27")),
    ("length 100", row("dot", "forward", 10_000, 100, 0.1, 9, copy_ratio="2.11")),
    ("mul and matvec", row("matvec", "forward", 10_000, 5000, 0.1, 9, copy_ratio="2.11")),
    ("few long segments", row("sum", "forward", 400_000, 24, 0.106, 9, 1)),
    ("float16", row("sum", "forward", 400_000, 10_000, 0.106, 9, 1, "float16")),
    ("odd widths", row("sum", "forward", 2933, 293, 5.1, 9, 1091)),
]


@pytest.mark.parametrize("planted", range(len(SLOW)), ids=[title for title, _ in SLOW])
def test_report_names_a_slow_cell_and_no_other(planted):
    title, slow = SLOW[planted]
    number = planted + 1
    assert len(report.TARGETS) == len(SLOW) and title in report.TARGETS[planted].title
    assert len(list(report.misses(GOOD))) == 2  # the heading
    *_, found = list(report.misses([*GOOD, slow]))
    assert found.startswith(f"| {number} | {slow['operation']} | {slow['order']} |")
    assert len(list(report.misses([*GOOD, slow]))) == 3
    assert f"| {number} | {report.TARGETS[planted].title} |" in "\n".join(report.targets([*GOOD, slow]))


def test_report_keeps_what_is_written_by_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("here.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, benchmark.COLUMNS)
        writer.writeheader()
        writer.writerows([*GOOD, SLOW[4][1]])
    document = pathlib.Path("document.md")
    gone = "<!-- table gone.csv -->\nold\n<!-- end -->\n"
    document.write_text(f"before\n<!-- table here.csv -->\nold\n<!-- end -->\nbetween\n{gone}after\n")
    report.main([str(document)])
    once = document.read_text()
    assert once.startswith("before\n<!-- table here.csv -->\n\n")
    assert once.endswith(f"<!-- end -->\nbetween\n{gone}after\n")
    assert "| 5 | sum | second | float32 | 3 | 10000 |" in once and once.count("old") == 1
    report.main([str(document)])
    assert document.read_text() == once


def test_report_compares_two_measurements(tmp_path, monkeypatch):
    """Cells that both have, by N: the means of both, and between which ratios eight of ten cells lie."""
    monkeypatch.chdir(tmp_path)
    first = [row("sum", "forward", 10_000, m, 1.0, 2.0, 1) for m in range(1, 12)]
    second = [r | {"speedup": str(0.1 * k)} for k, r in enumerate(first[:-1], start=1)]
    for name, rows in (("first.csv", first), ("second.csv", second)):
        with open(name, "w", newline="") as stream:
            writer = csv.DictWriter(stream, benchmark.COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    document = pathlib.Path("document.md")
    document.write_text("<!-- table first.csv again second.csv -->\n<!-- end -->\n")
    report.main([str(document)])
    assert "| 10,000 | 10 | 2.00 | 0.45 | 0.06 | 0.28 | 0.49 |" in document.read_text()
