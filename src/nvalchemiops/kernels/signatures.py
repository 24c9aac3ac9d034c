# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  tables
"""What the public launchers take, as data, and the checks that follow from it.

An array is written `name:type[dimension]`. Dimensions are n (elements) and m (segments). Types:

- T  float32, float64, or a vector of three of these;  V  the vector;  S  the scalar
- H  T, float16 or vec3h;  W  the vector of these;  R  the scalar
- U  like H, and X like T, but each a scalar or a vector on its own; the result is a vector if an operand is
- A  3 x 3 matrices;  i  int32

All arrays of a launcher have one scalar type; all T (or H) are scalars or all are vectors. M is a number of
segments. `idx` is int32.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import warp as wp

from ._registry import KINDS

_TABLE = """
segmented_sum                            x:T[n] idx out:T[m]
segmented_component_sum                  x:V[n] idx out:S[m]
segmented_dot                            x:T[n] y:T[n] idx out:S[m]
segmented_inner_products                 x:T[n] y:T[n] idx out_xy:S[m] out_xx:S[m] out_yy:S[m]
segmented_count                          idx out:i[m]
segmented_mean                           x:T[n] idx sums:T[m] counts:i[m] out:T[m]
segmented_rms_norm                       x:V[n] idx sum_sq:S[m] counts:i[m] out:S[m]
segmented_max_norm                       x:V[n] idx out:S[m]
segmented_max                            x:S[n] idx out:S[m]
segmented_min                            x:S[n] idx out:S[m]
segmented_broadcast                      values:H[m] idx out:H[n]
segmented_mul                            x:H[n] y:R[m] idx out:H[n]
segmented_add                            x:U[n] y:U[m] idx out:U[n]
segmented_axpy                           y:H[n] x:H[n] a:R[m] idx
segmented_axpby                          out:H[n] a:R[m] x:H[n] b:R[m] y:H[n] idx
segmented_matvec                         v:W[n] m:A[m] idx out:W[n]
segment_div                              numerator:S[m] denominator:i[m] result:S[m]

segmented_sum_backward                   g_out:T[m] idx grad_x:T[n]
segmented_sum_double_backward            gg_x:T[n] idx M grad_g_out:T[m]
segmented_broadcast_backward             g_out:T[n] idx M grad_values:T[m]
segmented_broadcast_double_backward      gg_values:T[m] idx grad_g_out:T[n]
segmented_component_sum_backward         g_out:S[m] idx grad_x:V[n]
segmented_component_sum_double_backward  gg_x:V[n] idx M grad_g_out:S[m]
segmented_add_backward                   g_out:X[n] idx M grad_x:X[n] grad_y:X[m]
segmented_add_double_backward            gg_x:X[n] gg_y:X[m] idx grad_g_out:X[n]
segmented_mul_backward                   g_out:T[n] x:T[n] y:S[m] idx M grad_x:T[n] grad_y:S[m]
segmented_mul_double_backward            gg_gx:T[n] gg_gy:S[m] g_out:T[n] x:T[n] y:S[m] idx grad_g_out:T[n] grad_x_extra:T[n] grad_y_extra:S[m]
segmented_dot_backward                   g_out:S[m] x:T[n] y:T[n] idx grad_x:T[n] grad_y:T[n]
segmented_dot_double_backward            gg_gx:T[n] gg_gy:T[n] g_out:S[m] x:T[n] y:T[n] idx M grad_g_out:S[m] grad_x_extra:T[n] grad_y_extra:T[n]
segmented_inner_products_backward        x:T[n] y:T[n] idx g_xy:S[m] g_xx:S[m] g_yy:S[m] grad_x:T[n] grad_y:T[n]
segmented_inner_products_double_backward gg_gx:T[n] gg_gy:T[n] x:T[n] y:T[n] g_xy:S[m] g_xx:S[m] g_yy:S[m] idx M grad_x_extra:T[n] grad_y_extra:T[n] grad_g_xy_extra:S[m] grad_g_xx_extra:S[m] grad_g_yy_extra:S[m]
segmented_axpy_backward                  g_out:T[n] x:T[n] a:S[m] idx M grad_y_in:T[n] grad_x:T[n] grad_a:S[m]
segmented_axpy_double_backward           gg_gy_in:T[n] gg_gx:T[n] gg_ga:S[m] g_out:T[n] x:T[n] a:S[m] idx grad_g_out:T[n] grad_x_extra:T[n] grad_a_extra:S[m]
segmented_axpby_backward                 g_out:T[n] a:S[m] x:T[n] b:S[m] y:T[n] idx M grad_x:T[n] grad_y:T[n] grad_a:S[m] grad_b:S[m]
segmented_axpby_double_backward          gg_gx:T[n] gg_gy:T[n] gg_ga:S[m] gg_gb:S[m] g_out:T[n] a:S[m] x:T[n] b:S[m] y:T[n] idx grad_g_out:T[n] grad_x_extra:T[n] grad_y_extra:T[n] grad_a_extra:S[m] grad_b_extra:S[m]
segmented_mean_backward                  g_out:T[m] counts:i[m] idx grad_x:T[n]
segmented_mean_double_backward           gg_x:T[n] counts:i[m] idx grad_g_out:T[m]
segmented_rms_norm_forward_precompute    x:V[n] idx sum_sq:S[m] counts:i[m] out:S[m] inv_norm:S[m]
segmented_rms_norm_backward              g_out:S[m] x:V[n] inv_norm:S[m] idx grad_x:V[n]
segmented_rms_norm_double_backward       gg_x:V[n] x:V[n] g_out:S[m] inv_norm:S[m] counts:i[m] idx M grad_x_extra:V[n] grad_g_out_extra:S[m]
segmented_max_norm_forward_precompute    x:V[n] idx out:S[m] argmax_idx:i[m]
segmented_max_norm_backward              g_out:S[m] x:V[n] argmax_idx:i[m] idx grad_x:V[n]
segmented_max_norm_double_backward       gg_gx:V[n] g_out:S[m] x:V[n] argmax_idx:i[m] idx grad_x_extra:V[n] grad_g_out:S[m]
segmented_matvec_backward                g_out:V[n] v:V[n] m:A[m] idx grad_v:V[n] grad_M:A[m]
segmented_matvec_double_backward         gg_gv:V[n] gg_gM:A[m] g_out:V[n] v:V[n] m:A[m] idx grad_g_out:V[n] grad_v_extra:V[n] grad_M_extra:A[m]
segment_div_backward                     g_result:S[m] denominator:i[m] grad_numerator:S[m]
segment_div_double_backward              gg_numerator:S[m] denominator:i[m] grad_g_result:S[m]
"""

_FULL = (wp.float32, wp.float64)
_ANY = (wp.float16, *_FULL)
# type: (scalar types, numbers of scalars)
_TYPES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "T": (_FULL, (1, 3)),
    "V": (_FULL, (3,)),
    "S": (_FULL, (1,)),
    "H": (_ANY, (1, 3)),
    "W": (_ANY, (3,)),
    "R": (_ANY, (1,)),
    "U": (_ANY, (1, 3)),
    "X": (_FULL, (1, 3)),
    "A": (_ANY, (9,)),
    "i": ((wp.int32,), (1,)),
}
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}


@dataclass(frozen=True)
class Argument:
    """One argument of a launcher; `M` has neither type nor dimension."""

    name: str
    type: str = ""
    dimension: str = ""


def _parse(text: str) -> Argument:
    if text == "idx":
        return Argument("idx", "i", "n")
    name, *typed = re.split(r"[:\[\]]", text)
    return Argument(name, *typed[:2])


SIGNATURES: dict[str, tuple[Argument, ...]] = {
    line.split()[0]: tuple(map(_parse, line.split()[1:])) for line in _TABLE.splitlines() if line
}


def _dtype_name(scalar: Any, width: int) -> str:
    return _DTYPES[scalar, width].__name__


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and not isinstance(value, wp.array)


def check(launcher: str, values: Sequence[Any]) -> None:
    """Raise unless the values are what the launcher's signature says. Only host data is read."""
    device = scalar = width = None
    mixed: dict[str, int] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for argument, value in zip(SIGNATURES[launcher], values, strict=True):
        where = f"{launcher}: {argument.name}"
        if not argument.type:
            if not _is_number(value):
                raise TypeError(f"{where} must be an int, got {type(value).__name__}")
            shape: tuple[int, ...] = (int(value),)
            if shape[0] < 0:
                raise ValueError(f"{where} must not be negative, got {shape[0]}")
            dimension = "m"
        else:
            if not isinstance(value, wp.array):
                raise TypeError(f"{where} must be a wp.array, got {type(value).__name__}")
            shape, dimension = value.shape, argument.dimension
            if len(shape) != 1:
                raise ValueError(f"{where} must be 1-D, got shape {shape}")
            scalars, widths = _TYPES[argument.type]
            kind = KINDS.get(value.dtype)
            if argument.type == "i":
                if value.dtype is not wp.int32:
                    raise ValueError(f"{where} must be int32, got {_name(value.dtype)}")
            else:
                if kind is not None and scalar is not None:
                    scalars = (scalar,)
                if argument.type in "TH" and width is not None:
                    widths = (width,)
                if kind is None or kind[0] not in scalars or kind[1] not in widths:
                    expected = " or ".join(_dtype_name(t, w) for w in widths for t in scalars)
                    raise ValueError(f"{where} must be an array of {expected}, got {_name(value.dtype)}")
                scalar = kind[0]
                if argument.type in "TH":
                    width = kind[1]
                if argument.type in "UX":
                    mixed[argument.name] = kind[1]
            if device is None:
                device = value.device
            elif value.device != device:
                raise ValueError(f"{where} is on {value.device}, the arguments before it on {device}")
        known, owner = sizes.setdefault(dimension, (shape[0], argument.name))
        if shape[0] != known:
            given = f"{shape[0]}" if not argument.type else f"length {shape[0]}"
            raise ValueError(f"{where} must agree with {owner} ({known}), got {given}")
    for name in ("out", "g_out", "grad_g_out"):  # the result of an addition
        if name in mixed and mixed[name] != max(w for other, w in mixed.items() if other != name):
            expected = "a scalar" if mixed[name] > 1 else "a vector"
            raise ValueError(f"{launcher}: {name} must have {expected} type to fit the other arguments")


def _name(dtype: Any) -> str:
    return getattr(dtype, "__name__", str(dtype))
