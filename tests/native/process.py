# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own."""

import ctypes
import os
import pathlib
import subprocess
import sys
import textwrap

SOURCE = pathlib.Path(__file__).parents[2] / "src"
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


def obey_permissions():
    """Before a program starts: root, too, may then write only what the permissions say. Others may not ask for it."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def start(program, log_level=30, **environment):
    """Start a program, with Warp's output at a level; a variable that is None is not in its environment."""
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    set_level = f"import warp; warp.config.log_level = {log_level}\n"
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program) if log_level is None else set_level + textwrap.dedent(program)],
        env={key: str(value) for key, value in variables.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=obey_permissions,
    )


def finish(process):
    """What it prints, by line."""
    try:
        out, err = process.communicate(timeout=1200)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err
    return out.strip().splitlines()


def python(program, **environment):
    return finish(start(program, **environment))
