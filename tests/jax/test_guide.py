# SPDX-License-Identifier: Apache-2.0
"""The program of the user guide runs as it stands, in a process of its own."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import segmentops

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_guide():
    pytest.importorskip("flatbuffers")  # JAX serialises with it
    text = (ROOT / "docs" / "userguide" / "jax.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) == text.count("```python") > 5
    program = "import warp; warp.config.log_level = 30\n" + "".join(blocks)
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(segmentops.__file__).parents[1])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr
