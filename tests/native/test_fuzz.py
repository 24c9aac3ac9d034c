# SPDX-License-Identifier: Apache-2.0
"""Random calls, with every array at the end of its page; and many more, under Clang's sanitizers."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from native.fuzz import case
from native.harness import at_the_edge, slow


def test_random_calls():
    checksums = [case(seed, at_the_edge) for seed in range(400)]
    assert len(set(checksums)) > 100  # most of them gave something, and something else


@slow
@pytest.mark.skipif(not shutil.which("clang-19"), reason="no clang-19")
def test_sanitizers(tmp_path):
    script = pathlib.Path(__file__).parents[2] / "scripts" / "sanitize.sh"
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(["bash", script, "20"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("random calls") == 2
