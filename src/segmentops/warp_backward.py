# SPDX-License-Identifier: Apache-2.0
"""Segment operations on Warp arrays: launchers of first and second derivatives.

What `segmentops.warp` says of all launchers holds here. Names: ``g_…`` is the gradient that
arrives, ``gg_…`` the cotangent of a first-order gradient, ``…_extra`` an output that is one of several
contributions to a gradient. M is the number of segments. Nothing is accumulated: outputs are overwritten.

A ``double_backward`` is the adjoint of the ``backward`` of the same name: with
L = <gg, gradients of the backward> its outputs are the derivatives of L by ``g_out`` and the inputs.
Element-wise outputs are 0 where ``idx[i]`` is outside [0, M), unless said otherwise.

A value that is no ``wp.array`` (or no int, for M) raises ``TypeError``; a wrong dtype, shape or device
``ValueError``. The types S, V, T and K in the docstrings are those of `segmentops.warp`.

Examples
--------
>>> import warp as wp
>>> wp.config.log_level = 30
>>> from segmentops.warp_backward import segmented_mul_backward
>>> x = wp.array([1.0, 2.0, 3.0], dtype=wp.float32, device="cpu")
>>> y = wp.array([10.0, 100.0], dtype=wp.float32, device="cpu")
>>> idx = wp.array([0, 1, 1], dtype=wp.int32, device="cpu")
>>> grad_x, grad_y = wp.empty_like(x), wp.empty_like(y)
>>> g_out = wp.ones_like(x)
>>> segmented_mul_backward(g_out, x, y, idx, 2, grad_x, grad_y)
>>> grad_x.numpy(), grad_y.numpy()
(array([ 10., 100., 100.], dtype=float32), array([1., 5.], dtype=float32))
"""

import warp as wp

from .kernels import dispatch
from .kernels.signatures import SIGNATURES, check

__all__ = [name for name in SIGNATURES if name.endswith(("_backward", "_forward_precompute"))]


# ------------------------------------------------------------------ sum, broadcast, component sum
def segmented_sum_backward(g_out: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """grad_x[i] = g_out[s].

    Parameters
    ----------
    g_out : wp.array
        T, shape (M,).
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        T, shape (N,).
    """
    check("segmented_sum_backward", (g_out, idx, grad_x))
    dispatch.broadcast(g_out, idx, grad_x)


def segmented_sum_double_backward(gg_x: wp.array, idx: wp.array, M: int, grad_g_out: wp.array) -> None:
    """grad_g_out[s] = sum of gg_x[i].

    Parameters
    ----------
    gg_x : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_g_out : wp.array
        T, shape (M,).
    """
    idx = check("segmented_sum_double_backward", (gg_x, idx, M, grad_g_out))
    dispatch.sum(gg_x, idx, grad_g_out)


def segmented_broadcast_backward(g_out: wp.array, idx: wp.array, M: int, grad_values: wp.array) -> None:
    """grad_values[s] = sum of g_out[i].

    Parameters
    ----------
    g_out : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_values : wp.array
        T, shape (M,).
    """
    idx = check("segmented_broadcast_backward", (g_out, idx, M, grad_values))
    dispatch.sum(g_out, idx, grad_values)


def segmented_broadcast_double_backward(gg_values: wp.array, idx: wp.array, grad_g_out: wp.array) -> None:
    """grad_g_out[i] = gg_values[s].

    Parameters
    ----------
    gg_values : wp.array
        T, shape (M,).
    idx : wp.array
        int32, shape (N,).
    grad_g_out : wp.array
        T, shape (N,).
    """
    check("segmented_broadcast_double_backward", (gg_values, idx, grad_g_out))
    dispatch.broadcast(gg_values, idx, grad_g_out)


def segmented_component_sum_backward(g_out: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """Every component of grad_x[i] = g_out[s].

    Parameters
    ----------
    g_out : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        V, shape (N,).
    """
    check("segmented_component_sum_backward", (g_out, idx, grad_x))
    dispatch.broadcast(g_out, idx, grad_x)


def segmented_component_sum_double_backward(gg_x: wp.array, idx: wp.array, M: int, grad_g_out: wp.array) -> None:
    """grad_g_out[s] = sum of all components of gg_x[i].

    Parameters
    ----------
    gg_x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_g_out : wp.array
        S, shape (M,).
    """
    idx = check("segmented_component_sum_double_backward", (gg_x, idx, M, grad_g_out))
    dispatch.component_sum(gg_x, idx, grad_g_out)


# ------------------------------------------------------------------ add
def segmented_add_backward(g_out: wp.array, idx: wp.array, M: int, grad_x: wp.array, grad_y: wp.array) -> None:
    """grad_x[i] = g_out[i], grad_y[s] = sum of g_out[i].

    Where an operand was a scalar and the result a vector, its gradient is summed over the components.

    Parameters
    ----------
    g_out : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_x : wp.array
        T of the first operand, shape (N,).
    grad_y : wp.array
        T of the second operand, shape (M,).
    """
    idx = check("segmented_add_backward", (g_out, idx, M, grad_x, grad_y))
    dispatch.restrict(g_out, idx, M, grad_x)
    dispatch.sum_to(g_out, idx, grad_y)


def segmented_add_double_backward(gg_x: wp.array, gg_y: wp.array, idx: wp.array, grad_g_out: wp.array) -> None:
    """grad_g_out[i] = gg_x[i] + gg_y[s].

    Parameters
    ----------
    gg_x : wp.array
        T, shape (N,).
    gg_y : wp.array
        T, shape (M,).
    idx : wp.array
        int32, shape (N,).
    grad_g_out : wp.array
        T, shape (N,): a vector if gg_x or gg_y is.
    """
    check("segmented_add_double_backward", (gg_x, gg_y, idx, grad_g_out))
    dispatch.add(gg_x, gg_y, idx, grad_g_out)


# ------------------------------------------------------------------ mul
def segmented_mul_backward(
    g_out: wp.array, x: wp.array, y: wp.array, idx: wp.array, M: int, grad_x: wp.array, grad_y: wp.array
) -> None:
    """grad_x[i] = g_out[i] y[s], grad_y[s] = sum of <g_out[i], x[i]>.

    Parameters
    ----------
    g_out, x : wp.array
        T, shape (N,).
    y : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_x : wp.array
        T, shape (N,).
    grad_y : wp.array
        S, shape (M,).
    """
    idx = check("segmented_mul_backward", (g_out, x, y, idx, M, grad_x, grad_y))
    dispatch.mul_backward(g_out, x, y, idx, grad_x, grad_y)


def segmented_mul_double_backward(
    gg_gx: wp.array,
    gg_gy: wp.array,
    g_out: wp.array,
    x: wp.array,
    y: wp.array,
    idx: wp.array,
    grad_g_out: wp.array,
    grad_x_extra: wp.array,
    grad_y_extra: wp.array,
) -> None:
    """Adjoint of `segmented_mul_backward`.

    grad_g_out[i] = gg_gx[i] y[s] + x[i] gg_gy[s], grad_x_extra[i] = g_out[i] gg_gy[s],
    grad_y_extra[s] = sum of <g_out[i], gg_gx[i]>.

    Parameters
    ----------
    gg_gx, g_out, x : wp.array
        T, shape (N,).
    gg_gy, y : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    grad_g_out, grad_x_extra : wp.array
        T, shape (N,).
    grad_y_extra : wp.array
        S, shape (M,).
    """
    idx = check(
        "segmented_mul_double_backward",
        (gg_gx, gg_gy, g_out, x, y, idx, grad_g_out, grad_x_extra, grad_y_extra),
    )
    dispatch.mul_add(gg_gx, y, x, gg_gy, idx, grad_g_out)
    dispatch.mul_backward(g_out, gg_gx, gg_gy, idx, grad_x_extra, grad_y_extra)


# ------------------------------------------------------------------ dot
def segmented_dot_backward(
    g_out: wp.array, x: wp.array, y: wp.array, idx: wp.array, grad_x: wp.array, grad_y: wp.array
) -> None:
    """grad_x[i] = y[i] g_out[s], grad_y[i] = x[i] g_out[s].

    Parameters
    ----------
    g_out : wp.array
        S, shape (M,).
    x, y : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,).
    grad_x, grad_y : wp.array
        T, shape (N,).
    """
    check("segmented_dot_backward", (g_out, x, y, idx, grad_x, grad_y))
    dispatch.mul(y, g_out, idx, grad_x)
    dispatch.mul(x, g_out, idx, grad_y)


def segmented_dot_double_backward(
    gg_gx: wp.array,
    gg_gy: wp.array,
    g_out: wp.array,
    x: wp.array,
    y: wp.array,
    idx: wp.array,
    M: int,
    grad_g_out: wp.array,
    grad_x_extra: wp.array,
    grad_y_extra: wp.array,
) -> None:
    """Adjoint of `segmented_dot_backward`.

    grad_g_out[s] = sum of <gg_gx[i], y[i]> + <x[i], gg_gy[i]>, grad_x_extra[i] = gg_gy[i] g_out[s],
    grad_y_extra[i] = gg_gx[i] g_out[s].

    Parameters
    ----------
    gg_gx, gg_gy, x, y : wp.array
        T, shape (N,).
    g_out : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_g_out : wp.array
        S, shape (M,).
    grad_x_extra, grad_y_extra : wp.array
        T, shape (N,).
    """
    idx = check(
        "segmented_dot_double_backward",
        (gg_gx, gg_gy, g_out, x, y, idx, M, grad_g_out, grad_x_extra, grad_y_extra),
    )
    dispatch.dot_add(gg_gx, y, x, gg_gy, idx, grad_g_out)
    dispatch.mul(gg_gy, g_out, idx, grad_x_extra)
    dispatch.mul(gg_gx, g_out, idx, grad_y_extra)


# ------------------------------------------------------------------ inner products
def segmented_inner_products_backward(
    x: wp.array,
    y: wp.array,
    idx: wp.array,
    g_xy: wp.array,
    g_xx: wp.array,
    g_yy: wp.array,
    grad_x: wp.array,
    grad_y: wp.array,
) -> None:
    """grad_x[i] = y[i] g_xy[s] + 2 x[i] g_xx[s], grad_y[i] = x[i] g_xy[s] + 2 y[i] g_yy[s].

    Parameters
    ----------
    x, y : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,).
    g_xy, g_xx, g_yy : wp.array
        S, shape (M,).
    grad_x, grad_y : wp.array
        T, shape (N,).
    """
    check("segmented_inner_products_backward", (x, y, idx, g_xy, g_xx, g_yy, grad_x, grad_y))
    dispatch.linear(idx, grad_x, (y, g_xy), (x, g_xx), twice=True)
    dispatch.linear(idx, grad_y, (x, g_xy), (y, g_yy), twice=True)


def segmented_inner_products_double_backward(
    gg_gx: wp.array,
    gg_gy: wp.array,
    x: wp.array,
    y: wp.array,
    g_xy: wp.array,
    g_xx: wp.array,
    g_yy: wp.array,
    idx: wp.array,
    M: int,
    grad_x_extra: wp.array,
    grad_y_extra: wp.array,
    grad_g_xy_extra: wp.array,
    grad_g_xx_extra: wp.array,
    grad_g_yy_extra: wp.array,
) -> None:
    """Adjoint of `segmented_inner_products_backward`.

    grad_x_extra[i] = gg_gy[i] g_xy[s] + 2 gg_gx[i] g_xx[s],
    grad_y_extra[i] = gg_gx[i] g_xy[s] + 2 gg_gy[i] g_yy[s],
    grad_g_xy_extra[s] = sum of <gg_gx[i], y[i]> + <gg_gy[i], x[i]>,
    grad_g_xx_extra[s] = sum of 2 <gg_gx[i], x[i]>, grad_g_yy_extra[s] = sum of 2 <gg_gy[i], y[i]>.

    Parameters
    ----------
    gg_gx, gg_gy, x, y : wp.array
        T, shape (N,).
    g_xy, g_xx, g_yy : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_x_extra, grad_y_extra : wp.array
        T, shape (N,).
    grad_g_xy_extra, grad_g_xx_extra, grad_g_yy_extra : wp.array
        S, shape (M,).
    """
    idx = check(
        "segmented_inner_products_double_backward",
        (
            gg_gx, gg_gy, x, y, g_xy, g_xx, g_yy, idx, M,
            grad_x_extra, grad_y_extra, grad_g_xy_extra, grad_g_xx_extra, grad_g_yy_extra,
        ),
    )  # fmt: skip
    dispatch.linear(idx, grad_x_extra, (gg_gy, g_xy), (gg_gx, g_xx), twice=True)
    dispatch.linear(idx, grad_y_extra, (gg_gx, g_xy), (gg_gy, g_yy), twice=True)
    dispatch.dot_add(gg_gx, y, gg_gy, x, idx, grad_g_xy_extra)
    dispatch.dot_add(gg_gx, x, gg_gx, x, idx, grad_g_xx_extra)
    dispatch.dot_add(gg_gy, y, gg_gy, y, idx, grad_g_yy_extra)


# ------------------------------------------------------------------ axpy, axpby
def segmented_axpy_backward(
    g_out: wp.array,
    x: wp.array,
    a: wp.array,
    idx: wp.array,
    M: int,
    grad_y_in: wp.array,
    grad_x: wp.array,
    grad_a: wp.array,
) -> None:
    """grad_y_in[i] = g_out[i] for every i, grad_x[i] = g_out[i] a[s], grad_a[s] = sum of <g_out[i], x[i]>.

    Parameters
    ----------
    g_out, x : wp.array
        T, shape (N,).
    a : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_y_in, grad_x : wp.array
        T, shape (N,).
    grad_a : wp.array
        S, shape (M,).
    """
    idx = check("segmented_axpy_backward", (g_out, x, a, idx, M, grad_y_in, grad_x, grad_a))
    wp.copy(grad_y_in, g_out)
    dispatch.mul_backward(g_out, x, a, idx, grad_x, grad_a)


def segmented_axpy_double_backward(
    gg_gy_in: wp.array,
    gg_gx: wp.array,
    gg_ga: wp.array,
    g_out: wp.array,
    x: wp.array,
    a: wp.array,
    idx: wp.array,
    grad_g_out: wp.array,
    grad_x_extra: wp.array,
    grad_a_extra: wp.array,
) -> None:
    """Adjoint of `segmented_axpy_backward`.

    grad_g_out[i] = gg_gy_in[i] + gg_gx[i] a[s] + x[i] gg_ga[s] (gg_gy_in[i] where idx[i] is outside [0, M)),
    grad_x_extra[i] = g_out[i] gg_ga[s], grad_a_extra[s] = sum of <g_out[i], gg_gx[i]>.

    Parameters
    ----------
    gg_gy_in, gg_gx, g_out, x : wp.array
        T, shape (N,).
    gg_ga, a : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    grad_g_out, grad_x_extra : wp.array
        T, shape (N,).
    grad_a_extra : wp.array
        S, shape (M,).
    """
    idx = check(
        "segmented_axpy_double_backward",
        (gg_gy_in, gg_gx, gg_ga, g_out, x, a, idx, grad_g_out, grad_x_extra, grad_a_extra),
    )
    dispatch.linear(idx, grad_g_out, (gg_gx, a), (x, gg_ga), base=gg_gy_in)
    dispatch.mul_backward(g_out, gg_gx, gg_ga, idx, grad_x_extra, grad_a_extra)


def segmented_axpby_backward(
    g_out: wp.array,
    a: wp.array,
    x: wp.array,
    b: wp.array,
    y: wp.array,
    idx: wp.array,
    M: int,
    grad_x: wp.array,
    grad_y: wp.array,
    grad_a: wp.array,
    grad_b: wp.array,
) -> None:
    """grad_x[i] = g_out[i] a[s], grad_a[s] = sum of <g_out[i], x[i]>; the same for y and b.

    Parameters
    ----------
    g_out, x, y : wp.array
        T, shape (N,).
    a, b : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_x, grad_y : wp.array
        T, shape (N,).
    grad_a, grad_b : wp.array
        S, shape (M,).
    """
    idx = check("segmented_axpby_backward", (g_out, a, x, b, y, idx, M, grad_x, grad_y, grad_a, grad_b))
    dispatch.mul_backward(g_out, x, a, idx, grad_x, grad_a)
    dispatch.mul_backward(g_out, y, b, idx, grad_y, grad_b)


def segmented_axpby_double_backward(
    gg_gx: wp.array,
    gg_gy: wp.array,
    gg_ga: wp.array,
    gg_gb: wp.array,
    g_out: wp.array,
    a: wp.array,
    x: wp.array,
    b: wp.array,
    y: wp.array,
    idx: wp.array,
    grad_g_out: wp.array,
    grad_x_extra: wp.array,
    grad_y_extra: wp.array,
    grad_a_extra: wp.array,
    grad_b_extra: wp.array,
) -> None:
    """Adjoint of `segmented_axpby_backward`.

    grad_g_out[i] = gg_gx[i] a[s] + gg_gy[i] b[s] + x[i] gg_ga[s] + y[i] gg_gb[s],
    grad_x_extra[i] = g_out[i] gg_ga[s], grad_a_extra[s] = sum of <g_out[i], gg_gx[i]>; the same for y and b.

    Parameters
    ----------
    gg_gx, gg_gy, g_out, x, y : wp.array
        T, shape (N,).
    gg_ga, gg_gb, a, b : wp.array
        S, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    grad_g_out, grad_x_extra, grad_y_extra : wp.array
        T, shape (N,).
    grad_a_extra, grad_b_extra : wp.array
        S, shape (M,).
    """
    idx = check(
        "segmented_axpby_double_backward",
        (
            gg_gx, gg_gy, gg_ga, gg_gb, g_out, a, x, b, y, idx,
            grad_g_out, grad_x_extra, grad_y_extra, grad_a_extra, grad_b_extra,
        ),
    )  # fmt: skip
    dispatch.linear(idx, grad_g_out, (gg_gx, a), (gg_gy, b), (x, gg_ga), (y, gg_gb))
    dispatch.mul_backward(g_out, gg_gx, gg_ga, idx, grad_x_extra, grad_a_extra)
    dispatch.mul_backward(g_out, gg_gy, gg_gb, idx, grad_y_extra, grad_b_extra)


# ------------------------------------------------------------------ mean
def segmented_mean_backward(g_out: wp.array, counts: wp.array, idx: wp.array, grad_x: wp.array) -> None:
    """grad_x[i] = g_out[s] / counts[s].

    Parameters
    ----------
    g_out : wp.array
        T, shape (M,).
    counts : wp.array
        int32, shape (M,), as of the forward operation.
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        T, shape (N,).
    """
    check("segmented_mean_backward", (g_out, counts, idx, grad_x))
    dispatch.spread(g_out, counts, idx, grad_x)


def segmented_mean_double_backward(gg_x: wp.array, counts: wp.array, idx: wp.array, grad_g_out: wp.array) -> None:
    """grad_g_out[s] = sum of gg_x[i] / counts[s], 0 for empty segments.

    Parameters
    ----------
    gg_x : wp.array
        T, shape (N,).
    counts : wp.array
        int32, shape (M,), as of the forward operation.
    idx : wp.array
        int32, shape (N,), sorted.
    grad_g_out : wp.array
        T, shape (M,).
    """
    idx = check("segmented_mean_double_backward", (gg_x, counts, idx, grad_g_out))
    dispatch.mean(gg_x, idx, None, None, grad_g_out)


# ------------------------------------------------------------------ rms norm
def segmented_rms_norm_forward_precompute(
    x: wp.array, idx: wp.array, sum_sq: wp.array, counts: wp.array, out: wp.array, inv_norm: wp.array
) -> None:
    """`segmented_rms_norm`, and inv_norm[s] = 1 / (out[s] counts[s]), 0 where out[s] is 0.

    In float32, what is no normal number is kept in another form, for the backward launchers alone: from 2^128 on (of
    subnormal data) as -2^-24 times the number, below 2^-126 as -2^48 times the number. It is negative then.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    sum_sq, out : wp.array
        S, shape (M,).
    inv_norm : wp.array
        K, shape (M,).
    counts : wp.array
        int32, shape (M,).
    """
    idx = check("segmented_rms_norm_forward_precompute", (x, idx, sum_sq, counts, out, inv_norm))
    dispatch.rms_norm(x, idx, sum_sq, counts, out, inv_norm)


def segmented_rms_norm_backward(
    g_out: wp.array, x: wp.array, inv_norm: wp.array, idx: wp.array, grad_x: wp.array
) -> None:
    """grad_x[i] = x[i] (g_out[s] inv_norm[s]).

    Parameters
    ----------
    g_out : wp.array
        S, shape (M,).
    inv_norm : wp.array
        K, shape (M,).
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        V, shape (N,).
    """
    check("segmented_rms_norm_backward", (g_out, x, inv_norm, idx, grad_x))
    dispatch.rms_norm_backward(g_out, x, inv_norm, idx, grad_x)


def segmented_rms_norm_double_backward(
    gg_x: wp.array,
    x: wp.array,
    g_out: wp.array,
    inv_norm: wp.array,
    counts: wp.array,
    idx: wp.array,
    M: int,
    grad_x_extra: wp.array,
    grad_g_out_extra: wp.array,
) -> None:
    """Adjoint of `segmented_rms_norm_backward`, the dependence of inv_norm on x included.

    With inner[s] = sum of <gg_x[i], x[i]>, kept in float64: grad_g_out_extra = inner inv_norm,
    grad_x_extra[i] = g_out inv_norm (gg_x[i] - (inner inv_norm) (counts inv_norm x[i])).

    Parameters
    ----------
    gg_x, x : wp.array
        V, shape (N,).
    g_out : wp.array
        S, shape (M,).
    inv_norm : wp.array
        K, shape (M,).
    counts : wp.array
        int32, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    M : int
        Number of segments.
    grad_x_extra : wp.array
        V, shape (N,).
    grad_g_out_extra : wp.array
        S, shape (M,).
    """
    idx = check(
        "segmented_rms_norm_double_backward",
        (gg_x, x, g_out, inv_norm, counts, idx, M, grad_x_extra, grad_g_out_extra),
    )
    dispatch.rms_norm_double_backward(gg_x, g_out, x, inv_norm, idx, grad_g_out_extra, grad_x_extra, counts)


# ------------------------------------------------------------------ max norm
def segmented_max_norm_forward_precompute(x: wp.array, idx: wp.array, out: wp.array, argmax_idx: wp.array) -> None:
    """`segmented_max_norm`, and argmax_idx[s], the smallest position of the maximum, -1 for empty segments.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,).
    argmax_idx : wp.array
        int32, shape (M,).
    """
    idx = check("segmented_max_norm_forward_precompute", (x, idx, out, argmax_idx))
    dispatch.max_norm(x, idx, out, argmax_idx)


def segmented_max_norm_backward(
    g_out: wp.array, x: wp.array, argmax_idx: wp.array, idx: wp.array, grad_x: wp.array
) -> None:
    """grad_x[i] = g_out[s] x[i] / ‖x[i]‖ at the argmax, 0 elsewhere and where ‖x[i]‖ = 0.

    Parameters
    ----------
    g_out : wp.array
        S, shape (M,).
    x : wp.array
        V, shape (N,).
    argmax_idx : wp.array
        int32, shape (M,), as of the forward operation.
    idx : wp.array
        int32, shape (N,).
    grad_x : wp.array
        V, shape (N,).
    """
    check("segmented_max_norm_backward", (g_out, x, argmax_idx, idx, grad_x))
    dispatch.max_norm_backward(g_out, x, argmax_idx, idx, grad_x)


def segmented_max_norm_double_backward(
    gg_gx: wp.array,
    g_out: wp.array,
    x: wp.array,
    argmax_idx: wp.array,
    idx: wp.array,
    grad_x_extra: wp.array,
    grad_g_out: wp.array,
) -> None:
    """Adjoint of `segmented_max_norm_backward`.

    At the argmax, with n = x / ‖x‖: grad_g_out[s] = <n, gg_gx>,
    grad_x_extra = (g_out / ‖x‖) (gg_gx - n <n, gg_gx>); 0 elsewhere and where ‖x‖ = 0.

    Parameters
    ----------
    gg_gx, x : wp.array
        V, shape (N,).
    g_out : wp.array
        S, shape (M,).
    argmax_idx : wp.array
        int32, shape (M,), as of the forward operation.
    idx : wp.array
        int32, shape (N,).
    grad_x_extra : wp.array
        V, shape (N,).
    grad_g_out : wp.array
        S, shape (M,).
    """
    check(
        "segmented_max_norm_double_backward",
        (gg_gx, g_out, x, argmax_idx, idx, grad_x_extra, grad_g_out),
    )
    dispatch.max_norm_double_backward(gg_gx, g_out, x, argmax_idx, idx, grad_g_out, grad_x_extra)


# ------------------------------------------------------------------ matvec
def segmented_matvec_backward(
    g_out: wp.array, v: wp.array, m: wp.array, idx: wp.array, grad_v: wp.array, grad_M: wp.array
) -> None:
    """grad_v[i] = m[s] g_out[i], grad_M[s] = sum of v[i] g_out[i]ᵀ.

    Parameters
    ----------
    g_out, v : wp.array
        V, shape (N,).
    m : wp.array
        3 x 3 matrices of v's scalar type, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    grad_v : wp.array
        V, shape (N,).
    grad_M : wp.array
        The type of m, shape (M,).
    """
    idx = check("segmented_matvec_backward", (g_out, v, m, idx, grad_v, grad_M))
    dispatch.matvec_t(g_out, m, idx, grad_v)
    dispatch.outer(v, g_out, idx, grad_M)


def segmented_matvec_double_backward(
    gg_gv: wp.array,
    gg_gM: wp.array,
    g_out: wp.array,
    v: wp.array,
    m: wp.array,
    idx: wp.array,
    grad_g_out: wp.array,
    grad_v_extra: wp.array,
    grad_M_extra: wp.array,
) -> None:
    """Adjoint of `segmented_matvec_backward`.

    grad_g_out[i] = m[s]ᵀ gg_gv[i] + gg_gM[s]ᵀ v[i], grad_v_extra[i] = gg_gM[s] g_out[i],
    grad_M_extra[s] = sum of gg_gv[i] g_out[i]ᵀ.

    Parameters
    ----------
    gg_gv, g_out, v : wp.array
        V, shape (N,).
    gg_gM, m : wp.array
        3 x 3 matrices of v's scalar type, shape (M,).
    idx : wp.array
        int32, shape (N,), sorted.
    grad_g_out, grad_v_extra : wp.array
        V, shape (N,).
    grad_M_extra : wp.array
        The type of m, shape (M,).
    """
    idx = check(
        "segmented_matvec_double_backward",
        (gg_gv, gg_gM, g_out, v, m, idx, grad_g_out, grad_v_extra, grad_M_extra),
    )
    dispatch.matvec_add(gg_gv, m, v, gg_gM, idx, grad_g_out)
    dispatch.matvec_t(g_out, gg_gM, idx, grad_v_extra)
    dispatch.outer(gg_gv, g_out, idx, grad_M_extra)


# ------------------------------------------------------------------ segments
def segment_div_backward(g_result: wp.array, denominator: wp.array, grad_numerator: wp.array) -> None:
    """grad_numerator[s] = g_result[s] / denominator[s], 0 where the denominator is 0.

    Parameters
    ----------
    g_result : wp.array
        S, shape (M,).
    denominator : wp.array
        int32, shape (M,).
    grad_numerator : wp.array
        S, shape (M,).
    """
    check("segment_div_backward", (g_result, denominator, grad_numerator))
    dispatch.divide(g_result, denominator, grad_numerator)


def segment_div_double_backward(gg_numerator: wp.array, denominator: wp.array, grad_g_result: wp.array) -> None:
    """grad_g_result[s] = gg_numerator[s] / denominator[s], 0 where the denominator is 0.

    Parameters
    ----------
    gg_numerator : wp.array
        S, shape (M,).
    denominator : wp.array
        int32, shape (M,).
    grad_g_result : wp.array
        S, shape (M,).
    """
    check("segment_div_double_backward", (gg_numerator, denominator, grad_g_result))
    dispatch.divide(gg_numerator, denominator, grad_g_result)
