# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  tables
"""What the public launchers take, as data, and the checks that follow from it.

An array is written `name:type[dimension]`. Dimensions are n (elements) and m (segments). Types:

- S  float16, bfloat16, float32 or float64;  V  a vector of three of these;  T  either
- X  like T, but each a scalar or a vector on its own; the result is a vector if an operand is
- A  3 x 3 matrices;  i  int32
- K  what is kept of a forward pass: S, but float32 for float16 and bfloat16, where it would often be no number

All arrays of a launcher have one scalar type (but for K); all T are scalars or all are vectors. M is a number of
segments. `idx` is int32, and sorted for a launcher that reduces: `idx:sorted`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import warp as wp

from ._registry import KEPT, kind_of
from .dispatch import in_order

_TABLE = """
segmented_sum                            x:T[n] idx:sorted out:T[m]
segmented_component_sum                  x:V[n] idx:sorted out:S[m]
segmented_dot                            x:T[n] y:T[n] idx:sorted out:S[m]
segmented_inner_products                 x:T[n] y:T[n] idx:sorted out_xy:S[m] out_xx:S[m] out_yy:S[m]
segmented_count                          idx:sorted out:i[m]
segmented_mean                           x:T[n] idx:sorted sums:T[m] counts:i[m] out:T[m]
segmented_rms_norm                       x:V[n] idx:sorted sum_sq:S[m] counts:i[m] out:S[m]
segmented_max_norm                       x:V[n] idx:sorted out:S[m]
segmented_max                            x:S[n] idx:sorted out:S[m]
segmented_min                            x:S[n] idx:sorted out:S[m]
segmented_broadcast                      values:T[m] idx out:T[n]
segmented_mul                            x:T[n] y:S[m] idx out:T[n]
segmented_add                            x:X[n] y:X[m] idx out:X[n]
segmented_axpy                           y:T[n] x:T[n] a:S[m] idx
segmented_axpby                          out:T[n] a:S[m] x:T[n] b:S[m] y:T[n] idx
segmented_matvec                         v:V[n] m:A[m] idx out:V[n]
segment_div                              numerator:S[m] denominator:i[m] result:S[m]

segmented_sum_backward                   g_out:T[m] idx grad_x:T[n]
segmented_sum_double_backward            gg_x:T[n] idx:sorted M grad_g_out:T[m]
segmented_broadcast_backward             g_out:T[n] idx:sorted M grad_values:T[m]
segmented_broadcast_double_backward      gg_values:T[m] idx grad_g_out:T[n]
segmented_component_sum_backward         g_out:S[m] idx grad_x:V[n]
segmented_component_sum_double_backward  gg_x:V[n] idx:sorted M grad_g_out:S[m]
segmented_add_backward                   g_out:X[n] idx:sorted M grad_x:X[n] grad_y:X[m]
segmented_add_double_backward            gg_x:X[n] gg_y:X[m] idx grad_g_out:X[n]
segmented_mul_backward                   g_out:T[n] x:T[n] y:S[m] idx:sorted M grad_x:T[n] grad_y:S[m]
segmented_mul_double_backward            gg_gx:T[n] gg_gy:S[m] g_out:T[n] x:T[n] y:S[m] idx:sorted grad_g_out:T[n] grad_x_extra:T[n] grad_y_extra:S[m]
segmented_dot_backward                   g_out:S[m] x:T[n] y:T[n] idx grad_x:T[n] grad_y:T[n]
segmented_dot_double_backward            gg_gx:T[n] gg_gy:T[n] g_out:S[m] x:T[n] y:T[n] idx:sorted M grad_g_out:S[m] grad_x_extra:T[n] grad_y_extra:T[n]
segmented_inner_products_backward        x:T[n] y:T[n] idx g_xy:S[m] g_xx:S[m] g_yy:S[m] grad_x:T[n] grad_y:T[n]
segmented_inner_products_double_backward gg_gx:T[n] gg_gy:T[n] x:T[n] y:T[n] g_xy:S[m] g_xx:S[m] g_yy:S[m] idx:sorted M grad_x_extra:T[n] grad_y_extra:T[n] grad_g_xy_extra:S[m] grad_g_xx_extra:S[m] grad_g_yy_extra:S[m]
segmented_axpy_backward                  g_out:T[n] x:T[n] a:S[m] idx:sorted M grad_y_in:T[n] grad_x:T[n] grad_a:S[m]
segmented_axpy_double_backward           gg_gy_in:T[n] gg_gx:T[n] gg_ga:S[m] g_out:T[n] x:T[n] a:S[m] idx:sorted grad_g_out:T[n] grad_x_extra:T[n] grad_a_extra:S[m]
segmented_axpby_backward                 g_out:T[n] a:S[m] x:T[n] b:S[m] y:T[n] idx:sorted M grad_x:T[n] grad_y:T[n] grad_a:S[m] grad_b:S[m]
segmented_axpby_double_backward          gg_gx:T[n] gg_gy:T[n] gg_ga:S[m] gg_gb:S[m] g_out:T[n] a:S[m] x:T[n] b:S[m] y:T[n] idx:sorted grad_g_out:T[n] grad_x_extra:T[n] grad_y_extra:T[n] grad_a_extra:S[m] grad_b_extra:S[m]
segmented_mean_backward                  g_out:T[m] counts:i[m] idx grad_x:T[n]
segmented_mean_double_backward           gg_x:T[n] counts:i[m] idx:sorted grad_g_out:T[m]
segmented_rms_norm_forward_precompute    x:V[n] idx:sorted sum_sq:S[m] counts:i[m] out:S[m] inv_norm:K[m]
segmented_rms_norm_backward              g_out:S[m] x:V[n] inv_norm:K[m] idx grad_x:V[n]
segmented_rms_norm_double_backward       gg_x:V[n] x:V[n] g_out:S[m] inv_norm:K[m] counts:i[m] idx:sorted M grad_x_extra:V[n] grad_g_out_extra:S[m]
segmented_max_norm_forward_precompute    x:V[n] idx:sorted out:S[m] argmax_idx:i[m]
segmented_max_norm_backward              g_out:S[m] x:V[n] argmax_idx:i[m] idx grad_x:V[n]
segmented_max_norm_double_backward       gg_gx:V[n] g_out:S[m] x:V[n] argmax_idx:i[m] idx grad_x_extra:V[n] grad_g_out:S[m]
segmented_matvec_backward                g_out:V[n] v:V[n] m:A[m] idx:sorted grad_v:V[n] grad_M:A[m]
segmented_matvec_double_backward         gg_gv:V[n] gg_gM:A[m] g_out:V[n] v:V[n] m:A[m] idx:sorted grad_g_out:V[n] grad_v_extra:V[n] grad_M_extra:A[m]
segment_div_backward                     g_result:S[m] denominator:i[m] grad_numerator:S[m]
segment_div_double_backward              gg_numerator:S[m] denominator:i[m] grad_g_result:S[m]
"""

_ANY = (wp.float16, wp.bfloat16, wp.float32, wp.float64)
# type: numbers of scalars
_TYPES: dict[str, tuple[int, ...]] = {"S": (1,), "V": (3,), "T": (1, 3), "X": (1, 3), "A": (9,), "K": (1,), "i": (1,)}
# The names of vectors and matrices in Warp; those of bfloat16 have none.
_VECTORS = {
    wp.float16: ("vec3h", "mat33h"), wp.float32: ("vec3f", "mat33f"), wp.float64: ("vec3d", "mat33d"),
    wp.bfloat16: ("wp.types.vector(3, wp.bfloat16)", "wp.types.matrix((3, 3), wp.bfloat16)"),
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """One argument of a launcher; `M` has neither type nor dimension."""

    name: str
    type: str = ""
    dimension: str = ""
    sorted: bool = False


def _parse(text: str) -> Argument:
    if text in ("idx", "idx:sorted"):
        return Argument("idx", "i", "n", text != "idx")
    name, *typed = re.split(r"[:\[\]]", text)
    return Argument(name, *typed[:2])


SIGNATURES: dict[str, tuple[Argument, ...]] = {
    line.split()[0]: tuple(map(_parse, line.split()[1:])) for line in _TABLE.splitlines() if line
}


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and not isinstance(value, wp.array)


def check(launcher: str, values: Sequence[Any]) -> Any:
    """Raise unless the values are what the launcher's signature says; idx, for a launcher that reduces, in order."""
    device = scalar = width = idx = None
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
            if argument.type == "i":
                if value.dtype is not wp.int32:
                    raise ValueError(f"{where} must be int32, got {_name(value.dtype)}")
                if argument.sorted:
                    idx = value
            else:
                widths = _TYPES[argument.type]
                kind = kind_of(value.dtype)
                scalars = _ANY if scalar is None else (KEPT[scalar] if argument.type == "K" else scalar,)
                if argument.type == "T" and width is not None:
                    widths = (width,)
                if kind is None or kind[0] not in scalars or kind[1] not in widths:
                    expected = " or ".join(_name_of(t, w) for w in widths for t in scalars)
                    raise ValueError(f"{where} must be an array of {expected}, got {_name(value.dtype)}")
                scalar = scalar or kind[0]
                if argument.type == "T":
                    width = kind[1]
                if argument.type == "X":
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
    return None if idx is None else in_order(launcher, idx, sizes["m"][0])


def _name(dtype: Any) -> str:
    kind = kind_of(dtype)
    return _name_of(*kind) if kind and kind[0] in _VECTORS else getattr(dtype, "__name__", str(dtype))


def _name_of(scalar: Any, width: int) -> str:
    return scalar.__name__ if width == 1 else _VECTORS[scalar][width == 9]
