# SPDX-License-Identifier: Apache-2.0
"""What every test directory shares."""

import warp as wp
from hypothesis import HealthCheck, settings
from parts import pytest_collection_modifyitems  # noqa: F401  (a hook)

wp.config.log_level = 30  # Warp's banner and module loads go to stdout

# Deterministic: a failure is a fact about the code, not about the day. No deadline: a first call compiles.
settings.register_profile(
    "nvalchemiops",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("nvalchemiops")


def pytest_addoption(parser):
    parser.addoption("--transform-matrix", action="store_true", help="write docs/transforms_torch.md")


def pytest_configure(config):
    if config.getoption("--transform-matrix"):
        from torch_matrix import Matrix

        config.pluginmanager.register(Matrix())
