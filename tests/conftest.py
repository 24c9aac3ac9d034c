# SPDX-License-Identifier: Apache-2.0
"""What every test directory shares."""

import importlib.util
import os
import subprocess
import sys

# Processes side by side (pytest-xdist) have a core each, more or less: a test that needs threads asks for them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import warp as wp
from hypothesis import HealthCheck, settings
from parts import pytest_collection_modifyitems  # noqa: F401  (a hook)

wp.config.log_level = 30  # Warp's banner and module loads go to stdout

# Deterministic: a failure is a fact about the code, not about the day. No deadline: a first call compiles.
settings.register_profile(
    "segmentops",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("segmentops")


def pytest_addoption(parser):
    parser.addoption("--transform-matrix", action="store_true", help="write docs/transforms_torch.md")


def compile_once():
    """The native code, for Warp's cache, before several processes each do that for themselves."""
    programs = ["import segmentops; segmentops.warmup(half=True)"]
    if importlib.util.find_spec("jax"):
        programs.append("import segmentops.jax; segmentops.jax.ffi_targets()")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for program in programs]
    for process in running:
        process.wait()  # should it fail, tests will say why


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        compile_once()
    if config.getoption("--transform-matrix") and not hasattr(config, "workerinput"):
        from torch_matrix import Matrix

        config.pluginmanager.register(Matrix())
