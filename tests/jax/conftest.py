# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the JAX tests. This directory joins the end of the path: nothing else has its names."""

import os
import sys

sys.path.append(os.path.dirname(__file__))
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:segmented_.* which is padding")
