# SPDX-License-Identifier: Apache-2.0
"""Differentiable segment operations for PyTorch, JAX and NVIDIA Warp arrays.

N elements (atoms, edges) belong to M segments (molecules, nodes), named by a sorted `idx`. The
functions live in `nvalchemiops.torch.segment_ops`, `nvalchemiops.jax.segment_ops` and, on Warp
arrays, `nvalchemiops.segment_ops`. This module imports no framework.
"""

from __future__ import annotations

import pathlib
import warnings

__all__ = ["__version__", "warmup"]

__version__ = "0.1.0"

_DISTRIBUTION = "nvalchemiops_segment_ops"


def warmup(half: bool = False) -> None:
    """Compile the native code now instead of at the first call.

    The first call of an operation compiles the part of the native code that it belongs to, which takes
    some seconds; Warp keeps the result in its kernel cache. Call this at the start of a simulation or
    when building an image.

    Parameters
    ----------
    half : bool
        Also what float16 and bfloat16 data needs, which is compiled apart.

    Raises
    ------
    nvalchemiops.native.NativeBuildError
        If the native code cannot be compiled.
    """
    from . import native

    native.load().warmup(half)


def _warn_of_other_distributions(folder: pathlib.Path) -> None:
    """pip lets two distributions install one package and mixes their files: say so."""
    for info in folder.glob("nvalchemi*.dist-info"):
        if info.name.startswith(_DISTRIBUTION + "-"):
            continue
        record = info / "RECORD"
        if record.is_file() and "\nnvalchemiops/" in "\n" + record.read_text(errors="replace"):
            warnings.warn(
                f"nvalchemiops: the distribution {info.name.removesuffix('.dist-info')} also ships the package "
                "nvalchemiops, so that files of both are mixed here. Uninstall both, then install the one you want.",
                stacklevel=3,
            )


_warn_of_other_distributions(pathlib.Path(__file__).resolve().parent.parent)
