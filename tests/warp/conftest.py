# SPDX-License-Identifier: Apache-2.0
import os
import sys

sys.path.append(os.path.dirname(__file__))  # for launchers.py; tests/warp cannot be a package called warp
