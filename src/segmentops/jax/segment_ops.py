# SPDX-License-Identifier: Apache-2.0
"""Segment operations on JAX arrays, differentiable to any order.

N elements belong to M segments; `idx` of shape (N,), int32 or int64, sorted, names the segment of each. The
functions work under every transform of JAX: `jit`, `grad`, `jvp`, `vmap` over any argument, `shard_map` and their
combinations. `num_segments` is part of the program's shape: a Python int, or a symbolic dimension in `jax.export`.

An element with idx = num_segments is padding: it belongs to no segment, whatever its data, a NaN too. Reductions
ignore it, per-element results and gradients are 0 there. So arrays of some few fixed sizes serve all batches, and
`jit` compiles one program per size:

>>> import jax, jax.numpy as jnp
>>> from segmentops.jax.segment_ops import segmented_mean
>>> def padded(x, idx, num_segments, size):
...     rows = size - idx.shape[0]
...     return jnp.pad(x, (0, rows)), jnp.pad(idx, (0, rows), constant_values=num_segments)
>>> x, idx = padded(jnp.array([1., 3., 4.]), jnp.array([0, 0, 1], dtype=jnp.int32), num_segments=2, size=8)
>>> jax.jit(segmented_mean, static_argnums=2)(x, idx, 2).tolist()
[2.0, 4.0]

Eager calls raise for other values of idx that do not fit, and warn of padding once in a process: there it is often a
num_segments that is one too small. In what JAX traces (`jit`, `checkpoint`, `scan`, ...) and
under a `vmap` over idx nothing is checked, not even an idx that is a constant there: every element whose idx is
outside [0, num_segments) is padding, and an unsorted idx gives unspecified values.

On the CPU sums are accumulated in float64 (float64 data: compensated) and rounded once, as the PyTorch functions do
it, bit for bit, up to second derivatives: the error is at most 4 eps times the sum of the magnitudes of what is
added, and the bits of a segment do not depend on the other segments in the batch or on the number of threads. CUDA
runs kernels that give the same bits. Higher derivatives of the norms, and other devices, run on XLA's own ops and
round as those do.
"""

from __future__ import annotations

from jax import Array

from ._public import public, selection

__all__ = [
    "segmented_dot",
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


_sum = public("sum")
_mean = public("mean")
_dot = public("dot")
_rms_norm = public("rms_norm")
_max_norm = public("max_norm")
_max = selection("max")
_min = selection("min")
_mul = public("mul")
_matvec = public("matvec")


def segmented_sum(x: Array, idx: Array, num_segments: int) -> Array:
    r"""Sum of the elements of each segment.

    .. math:: out_s = \sum_{i: idx_i = s} x_i

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Array, shape (M, ...)
        0 for an empty segment. The gradient of x is the segment's cotangent, of any order.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_sum
    >>> x = jnp.array([1., 2., 3., 4., 5., 6.])
    >>> idx = jnp.array([0, 0, 1, 1, 1, 2], dtype=jnp.int32)
    >>> out = segmented_sum(x, idx, num_segments=3)
    >>> out.tolist()
    [3.0, 12.0, 6.0]
    >>> jax.grad(lambda x: segmented_sum(x, idx, num_segments=3).sum())(x).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    return _sum(x, idx, num_segments)


def segmented_mean(x: Array, idx: Array, num_segments: int) -> Array:
    r"""Mean of the elements of each segment.

    .. math:: out_s = \frac{1}{n_s} \sum_{i: idx_i = s} x_i

    with :math:`n_s` the number of elements of segment s. The wide sum is divided and rounded once.

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Array, shape (M, ...)
        0 for an empty segment, with derivatives 0. The gradient of x[i] is that of its segment over
        :math:`n_s`, of any order.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_mean
    >>> x = jnp.array([1., 2., 3., 4., 5., 6.])
    >>> idx = jnp.array([0, 0, 1, 1, 1, 2], dtype=jnp.int32)
    >>> segmented_mean(x, idx, num_segments=3).tolist()
    [1.5, 4.0, 6.0]
    """
    return _mean(x, idx, num_segments)


def segmented_dot(x: Array, y: Array, idx: Array, num_segments: int) -> Array:
    r"""Sum over each segment of the inner products of two elements.

    .. math:: out_s = \sum_{i: idx_i = s} \langle x_i, y_i \rangle

    Parameters
    ----------
    x, y : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element; of the same shape and dtype.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted (an unsorted idx raises), values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Array, shape (M,)
        0 for an empty segment. Gradients of x and y, of any order, also where x is y.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_dot
    >>> x = jnp.array([[1., 0., 0.], [0., 2., 0.], [0., 0., 3.]])
    >>> idx = jnp.array([0, 0, 1], dtype=jnp.int32)
    >>> segmented_dot(x, x, idx, num_segments=2).tolist()
    [5.0, 9.0]
    """
    return _dot(x, y, idx, num_segments)


def segmented_rms_norm(x: Array, idx: Array, num_segments: int) -> Array:
    r"""Root mean square of the norms of the elements of each segment.

    .. math:: out_s = \sqrt{\frac{1}{n_s} \sum_{i: idx_i = s} \lVert x_i \rVert^2}

    The radius of gyration, where x are positions relative to the centre.

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Array, shape (M,)
        0 for an empty segment and for one whose elements are all 0, with derivatives of any order 0 there,
        never NaN.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_rms_norm
    >>> x = jnp.array([[3., 0., 0.], [0., 3., 0.], [0., 0., 4.]])
    >>> idx = jnp.array([0, 0, 1], dtype=jnp.int32)
    >>> segmented_rms_norm(x, idx, num_segments=2).tolist()
    [3.0, 4.0]
    """
    return _rms_norm(x, idx, num_segments)


def segmented_max_norm(x: Array, idx: Array, num_segments: int) -> Array:
    r"""Largest norm of the elements of each segment.

    .. math:: out_s = \max_{i: idx_i = s} \lVert x_i \rVert

    A NaN wins; ties go to the smallest i, which alone gets the gradient.

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Array, shape (M,)
        0 for an empty segment and for one whose elements are all 0, with derivatives of any order 0 there,
        never NaN.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_max_norm
    >>> x = jnp.array([[3., 4., 0.], [0., 3., 0.], [0., 0., 4.]])
    >>> idx = jnp.array([0, 0, 1], dtype=jnp.int32)
    >>> segmented_max_norm(x, idx, num_segments=2).tolist()
    [5.0, 4.0]
    """
    return _max_norm(x, idx, num_segments)


def segmented_max(x: Array, idx: Array, num_segments: int, fill: float = 0.0) -> Array:
    r"""Largest value of each column in each segment.

    .. math:: out_{s, \ldots} = \max_{i: idx_i = s} x_{i, \ldots}

    A NaN wins; ties go to the smallest i, which alone gets the gradient.

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.
    fill : float
        What an empty segment gets.

    Returns
    -------
    Array, shape (M, ...)
        Values of x, bit for bit; `fill` for an empty segment, with derivatives 0. The gradient of x is the segment's
        cotangent at the element that was chosen, 0 elsewhere; it does not depend on x, so second derivatives are 0.

    Raises
    ------
    TypeError
        If an argument is not an array, `num_segments` not an int or traced, or `fill` not a number.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax import segmented_max
    >>> x = jnp.array([[3., 4.], [5., 1.], [2., 8.]])
    >>> idx = jnp.array([0, 0, 2], dtype=jnp.int32)
    >>> segmented_max(x, idx, num_segments=3, fill=-1.0).tolist()
    [[5.0, 4.0], [-1.0, -1.0], [2.0, 8.0]]
    """
    return _max(x, idx, num_segments, fill)


def segmented_min(x: Array, idx: Array, num_segments: int, fill: float = 0.0) -> Array:
    r"""Smallest value of each column in each segment.

    .. math:: out_{s, \ldots} = \min_{i: idx_i = s} x_{i, \ldots}

    A NaN wins; ties go to the smallest i, which alone gets the gradient.

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M.
    fill : float
        What an empty segment gets.

    Returns
    -------
    Array, shape (M, ...)
        Values of x, bit for bit; `fill` for an empty segment, with derivatives 0. The gradient of x is the segment's
        cotangent at the element that was chosen, 0 elsewhere; it does not depend on x, so second derivatives are 0.

    Raises
    ------
    TypeError
        If an argument is not an array, `num_segments` not an int or traced, or `fill` not a number.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax import segmented_min
    >>> x = jnp.array([[3., 4.], [5., 1.], [2., 8.]])
    >>> idx = jnp.array([0, 0, 2], dtype=jnp.int32)
    >>> segmented_min(x, idx, num_segments=3, fill=float("inf")).tolist()
    [[3.0, 1.0], [inf, inf], [2.0, 8.0]]
    """
    return _min(x, idx, num_segments, fill)


def segmented_mul(x: Array, y: Array, idx: Array, num_segments: int) -> Array:
    r"""Each element times the scalar of its segment.

    .. math:: out_i = x_i \, y_{idx_i}

    Parameters
    ----------
    x : Array, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    y : Array, shape (M,), of the dtype of x
        One scalar per segment.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted (an unsorted idx raises), values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M; must be `y.shape[0]`.

    Returns
    -------
    Array, shape (N, ...)
        Gradients of x and y, of any order.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_mul
    >>> x = jnp.array([1., 2., 3.])
    >>> y = jnp.array([10., 100.])
    >>> idx = jnp.array([0, 0, 1], dtype=jnp.int32)
    >>> segmented_mul(x, y, idx, num_segments=2).tolist()
    [10.0, 20.0, 300.0]
    """
    return _mul(x, y, idx, num_segments)


def segmented_matvec(v: Array, m: Array, idx: Array, num_segments: int) -> Array:
    r"""Each element times the transposed matrix of its segment.

    .. math:: out_{ij} = \sum_k m_{idx_i, k, j} \, v_{ik}

    Note the transpose: with m a rotation matrix, the elements are rotated by its inverse.

    Parameters
    ----------
    v : Array, shape (N, K), float32, float64, float16 or bfloat16
        One vector per element.
    m : Array, shape (M, K, J), of the dtype of v
        One matrix per segment.
    idx : Array, shape (N,), int32 or int64
        Segment of each element, sorted (an unsorted idx raises), values in [0, num_segments]; num_segments is padding.
    num_segments : int
        Number of segments, M; must be `m.shape[0]`.

    Returns
    -------
    Array, shape (N, J)
        Added over k in ascending order in float64 and rounded once. Gradients of v and m, of any order.

    Raises
    ------
    TypeError
        If an argument is not an array, or `num_segments` not an int or traced.
    ValueError
        If a dtype or shape does not fit; in an eager call also if idx is out of range or not sorted.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from segmentops.jax.segment_ops import segmented_matvec
    >>> v = jnp.array([[1., 0., 0.], [0., 1., 0.]])
    >>> m = jnp.arange(9.).reshape(1, 3, 3)
    >>> idx = jnp.array([0, 0], dtype=jnp.int32)
    >>> segmented_matvec(v, m, idx, num_segments=1).tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    return _matvec(v, m, idx, num_segments)
