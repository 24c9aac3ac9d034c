# SPDX-License-Identifier: Apache-2.0
"""The names that programs written for the published interface `nvalchemiops` import, handed on from `segmentops`.

An independent implementation, not affiliated with the authors of the interface. Nothing is implemented here; new
programs import from `segmentops`. Ships as a distribution of its own, `segmentops-nvalchemiops`: install it only where
no other distribution ships a package of this name.
"""

from __future__ import annotations

import pathlib
import warnings

from segmentops import __version__

__all__ = ["__version__"]


def _warn_of_other_distributions(folder: pathlib.Path) -> None:
    """pip lets two distributions install one package and mixes their files: say so."""
    for info in folder.glob("*.dist-info"):
        if info.name.startswith("segmentops_nvalchemiops-"):
            continue
        record = info / "RECORD"
        if record.is_file() and "\nnvalchemiops/" in "\n" + record.read_text(errors="replace"):
            warnings.warn(
                f"nvalchemiops: the distribution {info.name.removesuffix('.dist-info')} also ships the package "
                "nvalchemiops, so that files of both are mixed here. Uninstall both, then install the one you want; "
                "segmentops itself can be installed beside it.",
                stacklevel=3,
            )


_warn_of_other_distributions(pathlib.Path(__file__).resolve().parent.parent)
