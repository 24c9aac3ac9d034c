# Written by scripts/write_stubs.py.
import warp as wp

__all__ = [
    "segment_div_backward",
    "segment_div_double_backward",
    "segmented_add_backward",
    "segmented_add_double_backward",
    "segmented_axpby_backward",
    "segmented_axpby_double_backward",
    "segmented_axpy_backward",
    "segmented_axpy_double_backward",
    "segmented_broadcast_backward",
    "segmented_broadcast_double_backward",
    "segmented_component_sum_backward",
    "segmented_component_sum_double_backward",
    "segmented_dot_backward",
    "segmented_dot_double_backward",
    "segmented_inner_products_backward",
    "segmented_inner_products_double_backward",
    "segmented_matvec_backward",
    "segmented_matvec_double_backward",
    "segmented_max_norm_backward",
    "segmented_max_norm_double_backward",
    "segmented_max_norm_forward_precompute",
    "segmented_mean_backward",
    "segmented_mean_double_backward",
    "segmented_mul_backward",
    "segmented_mul_double_backward",
    "segmented_rms_norm_backward",
    "segmented_rms_norm_double_backward",
    "segmented_rms_norm_forward_precompute",
    "segmented_sum_backward",
    "segmented_sum_double_backward",
]

def segment_div_backward(g_result: wp.array, denominator: wp.array, grad_numerator: wp.array) -> None:
    """Adjoint of `segment_div`.

    grad_numerator[s] = g_result[s] / denominator[s].
    """

def segment_div_double_backward(gg_numerator: wp.array, denominator: wp.array, grad_g_result: wp.array) -> None:
    """Adjoint of `segment_div_backward`.

    grad_g_result[s] = gg_numerator[s] / denominator[s].
    """

def segmented_add_backward(g_out: wp.array, idx: wp.array, M: int, grad_x: wp.array, grad_y: wp.array) -> None:
    """Adjoint of `segmented_add`.

    grad_x[i] = g_out[i],
    grad_y[s] = sum of g_out[i].
    """

def segmented_add_double_backward(gg_x: wp.array, gg_y: wp.array, idx: wp.array, grad_g_out: wp.array) -> None:
    """Adjoint of `segmented_add_backward`.

    grad_g_out[i] = gg_x[i] + gg_y[s].
    """

def segmented_axpby_backward(g_out: wp.array, a: wp.array, x: wp.array, b: wp.array, y: wp.array, idx: wp.array, M: int, grad_x: wp.array, grad_y: wp.array, grad_a: wp.array, grad_b: wp.array) -> None:
    """Adjoint of `segmented_axpby`.

    grad_x[i] = g_out[i] a[s],
    grad_y[i] = g_out[i] b[s],
    grad_a[s] = sum of <g_out[i], x[i]>,
    grad_b[s] = sum of <g_out[i], y[i]>.
    """

def segmented_axpby_double_backward(gg_gx: wp.array, gg_gy: wp.array, gg_ga: wp.array, gg_gb: wp.array, g_out: wp.array, a: wp.array, x: wp.array, b: wp.array, y: wp.array, idx: wp.array, grad_g_out: wp.array, grad_x_extra: wp.array, grad_y_extra: wp.array, grad_a_extra: wp.array, grad_b_extra: wp.array) -> None:
    """Adjoint of `segmented_axpby_backward`.

    grad_g_out[i] = gg_gx[i] a[s] + gg_gy[i] b[s] + x[i] gg_ga[s] + y[i] gg_gb[s],
    grad_x_extra[i] = g_out[i] gg_ga[s],
    grad_y_extra[i] = g_out[i] gg_gb[s],
    grad_a_extra[s] = sum of <gg_gx[i], g_out[i]>,
    grad_b_extra[s] = sum of <gg_gy[i], g_out[i]>.
    """

def segmented_axpy_backward(g_out: wp.array, x: wp.array, a: wp.array, idx: wp.array, M: int, grad_y_in: wp.array, grad_x: wp.array, grad_a: wp.array) -> None:
    """Adjoint of `segmented_axpy`.

    grad_y_in[i] = g_out[i],
    grad_x[i] = g_out[i] a[s],
    grad_a[s] = sum of <g_out[i], x[i]>.
    """

def segmented_axpy_double_backward(gg_gy_in: wp.array, gg_gx: wp.array, gg_ga: wp.array, g_out: wp.array, x: wp.array, a: wp.array, idx: wp.array, grad_g_out: wp.array, grad_x_extra: wp.array, grad_a_extra: wp.array) -> None:
    """Adjoint of `segmented_axpy_backward`.

    grad_g_out[i] = gg_gy_in[i] + gg_gx[i] a[s] + x[i] gg_ga[s],
    grad_x_extra[i] = g_out[i] gg_ga[s],
    grad_a_extra[s] = sum of <gg_gx[i], g_out[i]>.
    """

def segmented_broadcast_backward(g_out: wp.array, idx: wp.array, M: int, grad_values: wp.array) -> None:
    """Adjoint of `segmented_broadcast`.

    grad_values[s] = sum of g_out[i].
    """

def segmented_broadcast_double_backward(gg_values: wp.array, idx: wp.array, grad_g_out: wp.array) -> None:
    """Adjoint of `segmented_broadcast_backward`.

    grad_g_out[i] = gg_values[s].
    """

def segmented_component_sum_backward(g_out: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """Adjoint of `segmented_component_sum`.

    grad_x[i] = g_out[s].
    """

def segmented_component_sum_double_backward(gg_x: wp.array, idx: wp.array, M: int, grad_g_out: wp.array) -> None:
    """Adjoint of `segmented_component_sum_backward`.

    grad_g_out[s] = sum of gg_x[i].
    """

def segmented_dot_backward(g_out: wp.array, x: wp.array, y: wp.array, idx: wp.array, grad_x: wp.array, grad_y: wp.array) -> None:
    """Adjoint of `segmented_dot`.

    grad_x[i] = y[i] g_out[s],
    grad_y[i] = x[i] g_out[s].
    """

def segmented_dot_double_backward(gg_gx: wp.array, gg_gy: wp.array, g_out: wp.array, x: wp.array, y: wp.array, idx: wp.array, M: int, grad_g_out: wp.array, grad_x_extra: wp.array, grad_y_extra: wp.array) -> None:
    """Adjoint of `segmented_dot_backward`.

    grad_g_out[s] = sum of <gg_gx[i], y[i]> + <gg_gy[i], x[i]>,
    grad_x_extra[i] = gg_gy[i] g_out[s],
    grad_y_extra[i] = gg_gx[i] g_out[s].
    """

def segmented_inner_products_backward(x: wp.array, y: wp.array, idx: wp.array, g_xy: wp.array, g_xx: wp.array, g_yy: wp.array, grad_x: wp.array, grad_y: wp.array) -> None:
    """Adjoint of `segmented_inner_products`.

    grad_x[i] = y[i] g_xy[s] + 2 x[i] g_xx[s],
    grad_y[i] = x[i] g_xy[s] + 2 y[i] g_yy[s].
    """

def segmented_inner_products_double_backward(gg_gx: wp.array, gg_gy: wp.array, x: wp.array, y: wp.array, g_xy: wp.array, g_xx: wp.array, g_yy: wp.array, idx: wp.array, M: int, grad_x_extra: wp.array, grad_y_extra: wp.array, grad_g_xy_extra: wp.array, grad_g_xx_extra: wp.array, grad_g_yy_extra: wp.array) -> None:
    """Adjoint of `segmented_inner_products_backward`.

    grad_x_extra[i] = 2 gg_gx[i] g_xx[s] + gg_gy[i] g_xy[s],
    grad_y_extra[i] = gg_gx[i] g_xy[s] + 2 gg_gy[i] g_yy[s],
    grad_g_xy_extra[s] = sum of <gg_gx[i], y[i]> + <gg_gy[i], x[i]>,
    grad_g_xx_extra[s] = sum of 2 <gg_gx[i], x[i]>,
    grad_g_yy_extra[s] = sum of 2 <gg_gy[i], y[i]>.
    """

def segmented_matvec_backward(g_out: wp.array, v: wp.array, m: wp.array, idx: wp.array, grad_v: wp.array, grad_M: wp.array) -> None:
    """Adjoint of `segmented_matvec`.

    grad_v[i] = m[s] g_out[i],
    grad_M[s] = sum of v[i] g_out[i]ᵀ.
    """

def segmented_matvec_double_backward(gg_gv: wp.array, gg_gM: wp.array, g_out: wp.array, v: wp.array, m: wp.array, idx: wp.array, grad_g_out: wp.array, grad_v_extra: wp.array, grad_M_extra: wp.array) -> None:
    """Adjoint of `segmented_matvec_backward`.

    grad_g_out[i] = m[s]ᵀ gg_gv[i] + gg_gM[s]ᵀ v[i],
    grad_v_extra[i] = gg_gM[s] g_out[i],
    grad_M_extra[s] = sum of gg_gv[i] g_out[i]ᵀ.
    """

def segmented_max_norm_backward(g_out: wp.array, x: wp.array, argmax_idx: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """grad_x[i] = g_out[s] x[i] / ‖x[i]‖ at the argmax, 0 elsewhere and where ‖x[i]‖ = 0.
    """

def segmented_max_norm_double_backward(gg_gx: wp.array, g_out: wp.array, x: wp.array, argmax_idx: wp.array, idx: wp.array, grad_x_extra: wp.array, grad_g_out: wp.array) -> None:
    """Adjoint of `segmented_max_norm_backward`.

    At the argmax, with n = x / ‖x‖: grad_g_out[s] = <n, gg_gx>,
    grad_x_extra = (g_out / ‖x‖) (gg_gx - n <n, gg_gx>); 0 elsewhere and where ‖x‖ = 0.
    """

def segmented_max_norm_forward_precompute(x: wp.array, idx: wp.array, out: wp.array, argmax_idx: wp.array) -> None:
    """`segmented_max_norm`, and argmax_idx[s], the smallest position of the maximum, -1 for empty segments.
    """

def segmented_mean_backward(g_out: wp.array, counts: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """Adjoint of `segmented_mean`.

    grad_x[i] = g_out[s] / counts[s].
    """

def segmented_mean_double_backward(gg_x: wp.array, counts: wp.array, idx: wp.array, grad_g_out: wp.array) -> None:
    """Adjoint of `segmented_mean_backward`.

    grad_g_out[s] = sum of gg_x[i] / counts[s].
    """

def segmented_mul_backward(g_out: wp.array, x: wp.array, y: wp.array, idx: wp.array, M: int, grad_x: wp.array, grad_y: wp.array) -> None:
    """Adjoint of `segmented_mul`.

    grad_x[i] = g_out[i] y[s],
    grad_y[s] = sum of <g_out[i], x[i]>.
    """

def segmented_mul_double_backward(gg_gx: wp.array, gg_gy: wp.array, g_out: wp.array, x: wp.array, y: wp.array, idx: wp.array, grad_g_out: wp.array, grad_x_extra: wp.array, grad_y_extra: wp.array) -> None:
    """Adjoint of `segmented_mul_backward`.

    grad_g_out[i] = gg_gx[i] y[s] + x[i] gg_gy[s],
    grad_x_extra[i] = g_out[i] gg_gy[s],
    grad_y_extra[s] = sum of <gg_gx[i], g_out[i]>.
    """

def segmented_rms_norm_backward(g_out: wp.array, x: wp.array, inv_norm: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """grad_x[i] = x[i] (g_out[s] inv_norm[s]).
    """

def segmented_rms_norm_double_backward(gg_x: wp.array, x: wp.array, g_out: wp.array, inv_norm: wp.array, counts: wp.array, idx: wp.array, M: int, grad_x_extra: wp.array, grad_g_out_extra: wp.array) -> None:
    """Adjoint of `segmented_rms_norm_backward`, the dependence of inv_norm on x included.

    With inner[s] = sum of <gg_x[i], x[i]>, kept in float64: grad_g_out_extra = inner inv_norm,
    grad_x_extra[i] = g_out inv_norm (gg_x[i] - (inner inv_norm) (counts inv_norm x[i])).
    """

def segmented_rms_norm_forward_precompute(x: wp.array, idx: wp.array, sum_sq: wp.array, counts: wp.array, out: wp.array, inv_norm: wp.array) -> None:
    """`segmented_rms_norm`, and inv_norm[s] = 1 / (out[s] counts[s]), 0 where out[s] is 0.

    In float32, what is not a normal number is kept in another form, for the backward launchers alone: from 2^128 on (of
    subnormal data) as -2^-24 times the number, below 2^-126 as -2^48 times the number. It is negative then.
    """

def segmented_sum_backward(g_out: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """Adjoint of `segmented_sum`.

    grad_x[i] = g_out[s].
    """

def segmented_sum_double_backward(gg_x: wp.array, idx: wp.array, M: int, grad_g_out: wp.array) -> None:
    """Adjoint of `segmented_sum_backward`.

    grad_g_out[s] = sum of gg_x[i].
    """
