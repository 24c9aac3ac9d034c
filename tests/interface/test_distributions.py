# SPDX-License-Identifier: Apache-2.0
"""Two distributions: what their wheels hold, and that ours lives beside another one that ships `nvalchemiops`."""

import os
import pathlib
import subprocess
import sys

import pytest

import segmentops

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folders in which what `make wheel` builds of each distribution is installed; nothing is fetched."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("distributions")
    found = []
    for project, name in ((ROOT, "segmentops"), (ROOT / "interface", "segmentops_nvalchemiops")):
        build = [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder / "dist")]
        subprocess.run([*build, str(project)], check=True)
        (wheel,) = (folder / "dist").glob(name + "-*.whl")
        subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(folder / name), wheel], check=True)
        found.append(folder / name)
    return found


def files(folder):
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if path.suffix not in (".pyc", ".pyo")}


def test_each_holds_its_own_package(installed):
    """All of it, sources of the native code included, and nothing else."""
    for folder, package in zip(installed, ("segmentops", "nvalchemiops"), strict=True):
        assert files(folder / package) == files(pathlib.Path(segmentops.__file__).parents[1] / package)
        assert {path.name.split("-")[0] for path in folder.iterdir()} == {package, folder.name}


def test_beside_another_distribution(installed, tmp_path):
    """Another `nvalchemiops` and `segmentops` are installed in one environment, and both work."""
    other = tmp_path / "nvalchemiops"
    other.mkdir()
    (other / "__init__.py").write_text("def whose(): return 'theirs'\n")
    program = """
import nvalchemiops, segmentops, torch, warnings
warnings.simplefilter("error")
from segmentops.torch import segmented_sum
idx = torch.tensor([0, 0, 1])
print(nvalchemiops.whose(), segmented_sum(torch.ones(3), idx, 2).tolist(), torch.ops.segmentops.segmented_sum.default)
print(nvalchemiops.__file__, segmentops.__file__, sep="|")
"""
    path = os.pathsep.join([str(tmp_path), str(installed[0])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said, where = run.stdout.strip().splitlines()[-2:]
    assert said == "theirs [2.0, 1.0] segmentops.segmented_sum.default"
    theirs, ours = where.split("|")
    assert theirs.startswith(str(tmp_path)) and ours.startswith(str(installed[0]))
