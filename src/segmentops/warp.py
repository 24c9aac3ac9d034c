# SPDX-License-Identifier: Apache-2.0
"""Segment operations on Warp arrays: launchers of the forward operations.

N elements belong to M segments; ``idx[i]`` is the segment of element i. Every array is one-dimensional
in Warp's terms: of scalars, of ``vec3``, of ``mat33``. What holds for all launchers:

- Outputs are allocated by the caller and always fully written, also for N = 0. Inputs are not modified,
  unless "in place" is said.
- ``idx`` is int32 of shape (N,). An element with ``idx[i]`` outside [0, M) is ignored by reductions and gets 0 in
  element-wise outputs. Element-wise operations take any order; reductions want idx sorted, with what is outside [0, M)
  at its ends. On the CPU anything else is a ``ValueError`` that names the first element out of order, before anything
  is written. Where nothing can be raised (on CUDA, and in a capture on any device) nothing is looked at: there idx
  must ascend as it is, padding included (negative at the start, M or more at the end), or values are unspecified.
- Strided arrays are accepted. All arrays live on one device.
- Launches go to the current stream, do not synchronise, and can be captured with ``wp.ScopedCapture``;
  scratch comes from ``wp.empty``. Run an operation once before a capture: its kernels are compiled then.
- Sums are accumulated in float64 (float64 data with compensation) in an order that depends on nothing but
  the segment itself: a segment has the same bits alone and in any batch, on CPU and CUDA.
- A value that is not a ``wp.array`` (or not an int) raises ``TypeError``; a wrong dtype, shape or device
  ``ValueError``, before anything is launched. The message names the launcher and the argument.
- Importing this module initialises Warp (``wp.init``) with the settings that it has by then.

Types in the docstrings: S is float16, bfloat16, float32 or float64, V a vector of three of these (``vec3h``,
``vec3f``, ``vec3d``; ``wp.types.vector(3, wp.bfloat16)``), T is S or V. K, what is kept for a backward, is S, but
float32 for float16 and bfloat16: 1 / (out counts) is often no number of theirs. Sums that a mean or a norm leaves
beside its result are S: they may overflow in half precision where the result, which does not come from them, does not.
"""

import operator

import warp as wp

from .kernels import dispatch
from .kernels.launch import MAX, MIN
from .kernels.signatures import check

__all__ = [
    "compute_ept",
    "segment_div",
    "segmented_add",
    "segmented_axpby",
    "segmented_axpy",
    "segmented_broadcast",
    "segmented_component_sum",
    "segmented_count",
    "segmented_dot",
    "segmented_inner_products",
    "segmented_matvec",
    "segmented_max",
    "segmented_max_norm",
    "segmented_mean",
    "segmented_min",
    "segmented_mul",
    "segmented_rms_norm",
    "segmented_sum",
]


def __dir__() -> list[str]:
    return list(__all__)


# ------------------------------------------------------------------ reductions
def segmented_sum(x: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = sum of x[i] over the elements of segment s.

    Parameters
    ----------
    x : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        T, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_sum
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(3, dtype=wp.float32, device="cpu")
    >>> segmented_sum(x, idx, out)
    >>> out.numpy()
    array([3., 0., 7.], dtype=float32)
    """
    idx = check("segmented_sum", (x, idx, out))
    dispatch.sum(x, idx, out)


def segmented_component_sum(x: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = sum of all components of x[i] over segment s.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_component_sum
    >>> x = wp.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], dtype=wp.vec3f, device="cpu")
    >>> idx = wp.array([0, 0], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(1, dtype=wp.float32, device="cpu")
    >>> segmented_component_sum(x, idx, out)
    >>> out.numpy()
    array([7.], dtype=float32)
    """
    idx = check("segmented_component_sum", (x, idx, out))
    dispatch.component_sum(x, idx, out)


def segmented_dot(x: wp.array, y: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = sum of <x[i], y[i]> over segment s.

    Parameters
    ----------
    x, y : wp.array
        T, shape (N,), of one type.
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_dot
    >>> x = wp.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=wp.vec3f, device="cpu")
    >>> idx = wp.array([0, 1], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(2, dtype=wp.float32, device="cpu")
    >>> segmented_dot(x, x, idx, out)
    >>> out.numpy()
    array([5., 9.], dtype=float32)
    """
    idx = check("segmented_dot", (x, y, idx, out))
    dispatch.dot(x, y, idx, out)


def segmented_inner_products(
    x: wp.array, y: wp.array, idx: wp.array, out_xy: wp.array, out_xx: wp.array, out_yy: wp.array
) -> None:
    """out_xy[s], out_xx[s], out_yy[s] = sums of <x[i], y[i]>, <x[i], x[i]>, <y[i], y[i]> over segment s.

    Parameters
    ----------
    x, y : wp.array
        T, shape (N,), of one type.
    idx : wp.array
        int32, shape (N,), sorted.
    out_xy, out_xx, out_yy : wp.array
        S, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_inner_products
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> y = wp.array([1.0, 0.0, 1.0, 0.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> xy = wp.empty(3, dtype=wp.float32, device="cpu")
    >>> xx = wp.empty(3, dtype=wp.float32, device="cpu")
    >>> yy = wp.empty(3, dtype=wp.float32, device="cpu")
    >>> segmented_inner_products(x, y, idx, xy, xx, yy)
    >>> xx.numpy()
    array([ 5.,  0., 25.], dtype=float32)
    """
    idx = check("segmented_inner_products", (x, y, idx, out_xy, out_xx, out_yy))
    dispatch.inner_products(x, y, idx, out_xy, out_xx, out_yy)


def segmented_count(idx: wp.array, out: wp.array) -> None:
    """out[s] = number of elements of segment s.

    Parameters
    ----------
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        int32, shape (M,).

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_count
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(3, dtype=wp.int32, device="cpu")
    >>> segmented_count(idx, out)
    >>> out.numpy()
    array([2, 0, 2], dtype=int32)
    """
    idx = check("segmented_count", (idx, out))
    dispatch.count(idx, out)


def segmented_mean(x: wp.array, idx: wp.array, sums: wp.array, counts: wp.array, out: wp.array) -> None:
    """out[s] = mean of x[i] over segment s.

    The mean comes from the wide accumulator, not from the rounded sum.

    Parameters
    ----------
    x : wp.array
        T, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    sums : wp.array
        T, shape (M,); holds the sums afterwards.
    counts : wp.array
        int32, shape (M,); holds the numbers of elements afterwards.
    out : wp.array
        T, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_mean
    >>> x = wp.array([1.0, 2.0, 5.0], dtype=wp.float64, device="cpu")
    >>> idx = wp.array([0, 0, 1], dtype=wp.int32, device="cpu")
    >>> sums, out = (wp.empty(2, dtype=wp.float64, device="cpu") for _ in range(2))
    >>> counts = wp.empty(2, dtype=wp.int32, device="cpu")
    >>> segmented_mean(x, idx, sums, counts, out)
    >>> out.numpy(), counts.numpy()
    (array([1.5, 5. ]), array([2, 1], dtype=int32))
    """
    idx = check("segmented_mean", (x, idx, sums, counts, out))
    dispatch.mean(x, idx, sums, counts, out)


def segmented_rms_norm(x: wp.array, idx: wp.array, sum_sq: wp.array, counts: wp.array, out: wp.array) -> None:
    """out[s] = sqrt(mean of ‖x[i]‖² over segment s).

    The root comes from the wide accumulator, not from the rounded sum of squares.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    sum_sq : wp.array
        S, shape (M,); holds the sums of ‖x[i]‖² afterwards.
    counts : wp.array
        int32, shape (M,); holds the numbers of elements afterwards.
    out : wp.array
        S, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_rms_norm
    >>> x = wp.array([[3.0, 0.0, 4.0], [0.0, 5.0, 0.0]], dtype=wp.vec3d, device="cpu")
    >>> idx = wp.array([0, 0], dtype=wp.int32, device="cpu")
    >>> sum_sq, out = (wp.empty(1, dtype=wp.float64, device="cpu") for _ in range(2))
    >>> counts = wp.empty(1, dtype=wp.int32, device="cpu")
    >>> segmented_rms_norm(x, idx, sum_sq, counts, out)
    >>> out.numpy()
    array([5.])
    """
    idx = check("segmented_rms_norm", (x, idx, sum_sq, counts, out))
    dispatch.rms_norm(x, idx, sum_sq, counts, out)


def segmented_max_norm(x: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = max of ‖x[i]‖ over segment s.

    A NaN wins. Squared norms are compared in float64.

    Parameters
    ----------
    x : wp.array
        V, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,). Empty segments get 0.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_max_norm
    >>> x = wp.array([[3.0, 0.0, 4.0], [0.0, 1.0, 0.0]], dtype=wp.vec3f, device="cpu")
    >>> idx = wp.array([0, 0], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(2, dtype=wp.float32, device="cpu")
    >>> segmented_max_norm(x, idx, out)
    >>> out.numpy()
    array([5., 0.], dtype=float32)
    """
    idx = check("segmented_max_norm", (x, idx, out))
    dispatch.max_norm(x, idx, out)


def segmented_max(x: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = max(out[s], max of x[i] over segment s), in place.

    Initialise ``out``, as a rule to -inf; empty segments keep it. A NaN wins.

    Parameters
    ----------
    x : wp.array
        S, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,); read and written.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_max
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> out = wp.full(3, value=-wp.inf, dtype=wp.float32, device="cpu")
    >>> segmented_max(x, idx, out)
    >>> out.numpy()
    array([  2., -inf,   4.], dtype=float32)
    """
    idx = check("segmented_max", (x, idx, out))
    dispatch.extreme(MAX, x, idx, out)


def segmented_min(x: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[s] = min(out[s], min of x[i] over segment s), in place.

    Initialise ``out``, as a rule to +inf; empty segments keep it. A NaN wins.

    Parameters
    ----------
    x : wp.array
        S, shape (N,).
    idx : wp.array
        int32, shape (N,), sorted.
    out : wp.array
        S, shape (M,); read and written.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_min
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> out = wp.full(3, value=wp.inf, dtype=wp.float32, device="cpu")
    >>> segmented_min(x, idx, out)
    >>> out.numpy()
    array([ 1., inf,  3.], dtype=float32)
    """
    idx = check("segmented_min", (x, idx, out))
    dispatch.extreme(MIN, x, idx, out)


# ------------------------------------------------------------------ element-wise
def segmented_broadcast(values: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = values[idx[i]].

    Parameters
    ----------
    values : wp.array
        T, shape (M,).
    idx : wp.array
        int32, shape (N,), any order.
    out : wp.array
        T, shape (N,).

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_broadcast
    >>> values = wp.array([1.0, 2.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 1, 1], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(3, dtype=wp.float32, device="cpu")
    >>> segmented_broadcast(values, idx, out)
    >>> out.numpy()
    array([1., 2., 2.], dtype=float32)
    """
    check("segmented_broadcast", (values, idx, out))
    dispatch.broadcast(values, idx, out)


def segmented_mul(x: wp.array, y: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = x[i] * y[idx[i]].

    Parameters
    ----------
    x : wp.array
        T, shape (N,).
    y : wp.array
        The scalar type of x, shape (M,).
    idx : wp.array
        int32, shape (N,), any order.
    out : wp.array
        The type of x, shape (N,).

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_mul
    >>> x = wp.array([1.0, 2.0, 3.0], dtype=wp.float32, device="cpu")
    >>> y = wp.array([10.0, 100.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 1, 1], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(3, dtype=wp.float32, device="cpu")
    >>> segmented_mul(x, y, idx, out)
    >>> out.numpy()
    array([ 10., 200., 300.], dtype=float32)
    """
    check("segmented_mul", (x, y, idx, out))
    dispatch.mul(x, y, idx, out)


def segmented_add(x: wp.array, y: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = x[i] + y[idx[i]].

    Parameters
    ----------
    x : wp.array
        T, shape (N,).
    y : wp.array
        T of the same scalar type, shape (M,). If one of x and y is a vector, the scalar other is added to
        every component.
    idx : wp.array
        int32, shape (N,), any order.
    out : wp.array
        T, shape (N,): a vector if x or y is.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_add
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> y = wp.array([10.0, 20.0, 30.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(4, dtype=wp.float32, device="cpu")
    >>> segmented_add(x, y, idx, out)
    >>> out.numpy()
    array([11., 12., 33., 34.], dtype=float32)
    """
    check("segmented_add", (x, y, idx, out))
    dispatch.add(x, y, idx, out)


def segmented_axpy(y: wp.array, x: wp.array, a: wp.array, idx: wp.array) -> None:
    """y[i] += x[i] * a[idx[i]], in place; y[i] stays as it is where idx[i] is outside [0, M).

    Parameters
    ----------
    y : wp.array
        T, shape (N,); read and written.
    x : wp.array
        The type of y, shape (N,).
    a : wp.array
        The scalar type of y, shape (M,).
    idx : wp.array
        int32, shape (N,), any order.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_axpy
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> y = wp.array([1.0, 1.0, 1.0, 1.0], dtype=wp.float32, device="cpu")
    >>> a = wp.array([2.0, 0.0, 3.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> segmented_axpy(y, x, a, idx)
    >>> y.numpy()
    array([ 3.,  5., 10., 13.], dtype=float32)
    """
    check("segmented_axpy", (y, x, a, idx))
    dispatch.linear(idx, y, (x, a), base=y)


def segmented_axpby(out: wp.array, a: wp.array, x: wp.array, b: wp.array, y: wp.array, idx: wp.array) -> None:
    """out[i] = a[idx[i]] * x[i] + b[idx[i]] * y[i].

    Parameters
    ----------
    out : wp.array
        T, shape (N,).
    a, b : wp.array
        The scalar type of out, shape (M,).
    x, y : wp.array
        The type of out, shape (N,).
    idx : wp.array
        int32, shape (N,), any order.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_axpby
    >>> x = wp.array([1.0, 2.0, 3.0, 4.0], dtype=wp.float32, device="cpu")
    >>> y = wp.array([1.0, 1.0, 1.0, 1.0], dtype=wp.float32, device="cpu")
    >>> a = wp.array([2.0, 0.0, 3.0], dtype=wp.float32, device="cpu")
    >>> b = wp.array([10.0, 0.0, 20.0], dtype=wp.float32, device="cpu")
    >>> idx = wp.array([0, 0, 2, 2], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(4, dtype=wp.float32, device="cpu")
    >>> segmented_axpby(out, a, x, b, y, idx)
    >>> out.numpy()
    array([12., 14., 29., 32.], dtype=float32)
    """
    check("segmented_axpby", (out, a, x, b, y, idx))
    dispatch.mul_add(x, a, y, b, idx, out)


def segmented_matvec(v: wp.array, m: wp.array, idx: wp.array, out: wp.array) -> None:
    """out[i] = m[idx[i]]ᵀ v[i].

    Parameters
    ----------
    v : wp.array
        V, shape (N,).
    m : wp.array
        3 x 3 matrices of v's scalar type, shape (M,).
    idx : wp.array
        int32, shape (N,), any order.
    out : wp.array
        The type of v, shape (N,).

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segmented_matvec
    >>> v = wp.array([[1.0, 0.0, 0.0]], dtype=wp.vec3f, device="cpu")
    >>> m = wp.array([[[1.0, 2.0, 3.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]], dtype=wp.mat33f, device="cpu")
    >>> idx = wp.array([0], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(1, dtype=wp.vec3f, device="cpu")
    >>> segmented_matvec(v, m, idx, out)
    >>> out.numpy()
    array([[1., 2., 3.]], dtype=float32)
    """
    check("segmented_matvec", (v, m, idx, out))
    dispatch.matvec(v, m, idx, out)


# ------------------------------------------------------------------ segments
def segment_div(numerator: wp.array, denominator: wp.array, result: wp.array) -> None:
    """result[s] = numerator[s] / denominator[s], 0 where the denominator is 0.

    Parameters
    ----------
    numerator : wp.array
        S, shape (M,).
    denominator : wp.array
        int32, shape (M,).
    result : wp.array
        S, shape (M,).

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, see the module.

    Examples
    --------
    >>> import warp as wp
    >>> wp.config.log_level = 30
    >>> from segmentops.warp import segment_div
    >>> total = wp.array([6.0, 0.0], dtype=wp.float32, device="cpu")
    >>> counts = wp.array([4, 0], dtype=wp.int32, device="cpu")
    >>> out = wp.empty(2, dtype=wp.float32, device="cpu")
    >>> segment_div(total, counts, out)
    >>> out.numpy()
    array([1.5, 0. ], dtype=float32)
    """
    check("segment_div", (numerator, denominator, result))
    dispatch.divide(numerator, denominator, result)


def compute_ept(N: int, sm_count: int, is_vec3: bool) -> int:
    """Elements per thread of a run-length kernel.

    N // (sm_count * 512), rounded to the nearest power of two (up on a tie: 3 gives 4) and clamped to
    [4, 16] for scalars, [2, 8] for vec3. Our kernels do not need it; programs that tune their own do.

    Parameters
    ----------
    N : int
        Number of elements.
    sm_count : int
        Number of multiprocessors, positive.
    is_vec3 : bool
        Whether an element is a vector.

    Returns
    -------
    int
        A power of two.

    Raises
    ------
    ValueError
        If N is negative or sm_count is not positive.

    Examples
    --------
    >>> from segmentops.warp import compute_ept
    >>> compute_ept(512 * 3, 1, False), compute_ept(512 * 12, 1, True), compute_ept(10, 80, True)
    (4, 8, 2)
    """
    N, sm_count = operator.index(N), operator.index(sm_count)
    if N < 0 or sm_count <= 0:
        raise ValueError(f"compute_ept: N must not be negative and sm_count positive, got {N} and {sm_count}")
    low, high = (2, 8) if is_vec3 else (4, 16)
    ideal = N // (sm_count * 512)
    below = 1 << max(ideal.bit_length() - 1, 0)
    nearest = 2 * below if ideal - below >= 2 * below - ideal else below
    return min(max(nearest, low), high)
