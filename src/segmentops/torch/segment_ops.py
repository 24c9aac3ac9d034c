# SPDX-License-Identifier: Apache-2.0
"""Segment operations on PyTorch tensors, differentiable to any order.

N elements belong to M segments; `idx` of shape (N,), int32 or int64, sorted, names the segment of each. The
functions work eagerly, under `torch.compile(fullgraph=True)` and under `torch.func` transforms.

In compiled, exported, scripted or traced programs, and where `vmap` maps over idx, its values are not checked: an
element whose idx is outside [0, num_segments) belongs to no segment. Reductions ignore it, per-element results and
gradients are 0 there. Other calls raise instead.

Sums are accumulated in float64 (float32, float16 and bfloat16 data) or compensated (float64 data), and rounded
once: the error is at most 4 eps times the sum of the magnitudes of what is added, and the bits of a segment do not
depend on the other segments in the batch or on the number of threads. The mean of equal numbers is that number.
Elements are counted in integers, also those of half-precision data.
"""

from __future__ import annotations

from torch import Tensor

from ._public import public, scriptable, selection

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


def segmented_sum(x: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Sum of the elements of each segment.

    .. math:: out_s = \sum_{i: idx_i = s} x_i

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments).
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Tensor, shape (M, ...)
        0 for an empty segment. The gradient of x is the segment's cotangent, of any order.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_sum
    >>> x = torch.tensor([1., 2., 3., 4., 5., 6.], requires_grad=True)
    >>> idx = torch.tensor([0, 0, 1, 1, 1, 2], dtype=torch.int32)
    >>> out = segmented_sum(x, idx, num_segments=3)
    >>> out.tolist()
    [3.0, 12.0, 6.0]
    >>> out.sum().backward()
    >>> x.grad.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    return _sum(x, idx, num_segments)


def segmented_mean(x: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Mean of the elements of each segment.

    .. math:: out_s = \frac{1}{n_s} \sum_{i: idx_i = s} x_i

    with :math:`n_s` the number of elements of segment s. The wide sum is divided and rounded once.

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments).
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Tensor, shape (M, ...)
        0 for an empty segment, with derivatives 0. The gradient of x[i] is that of its segment over
        :math:`n_s`, of any order.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_mean
    >>> x = torch.tensor([1., 2., 3., 4., 5., 6.])
    >>> idx = torch.tensor([0, 0, 1, 1, 1, 2], dtype=torch.int32)
    >>> segmented_mean(x, idx, num_segments=3).tolist()
    [1.5, 4.0, 6.0]
    """
    return _mean(x, idx, num_segments)


def segmented_dot(x: Tensor, y: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Sum over each segment of the inner products of two elements.

    .. math:: out_s = \sum_{i: idx_i = s} \langle x_i, y_i \rangle

    Parameters
    ----------
    x, y : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element; of the same shape and dtype.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted (an unsorted idx raises), values in [0, num_segments).
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Tensor, shape (M,)
        0 for an empty segment. Gradients of x and y, of any order, also where x is y.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_dot
    >>> x = torch.tensor([[1., 0., 0.], [0., 2., 0.], [0., 0., 3.]])
    >>> idx = torch.tensor([0, 0, 1], dtype=torch.int32)
    >>> segmented_dot(x, x, idx, num_segments=2).tolist()
    [5.0, 9.0]
    """
    return _dot(x, y, idx, num_segments)


def segmented_rms_norm(x: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Root mean square of the norms of the elements of each segment.

    .. math:: out_s = \sqrt{\frac{1}{n_s} \sum_{i: idx_i = s} \lVert x_i \rVert^2}

    The radius of gyration, where x are positions relative to the centre.

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments).
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Tensor, shape (M,)
        0 for an empty segment and for one whose elements are all 0, with derivatives of any order 0 there,
        never NaN.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_rms_norm
    >>> x = torch.tensor([[3., 0., 0.], [0., 3., 0.], [0., 0., 4.]])
    >>> idx = torch.tensor([0, 0, 1], dtype=torch.int32)
    >>> segmented_rms_norm(x, idx, num_segments=2).tolist()
    [3.0, 4.0]
    """
    return _rms_norm(x, idx, num_segments)[0]


def segmented_max_norm(x: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Largest norm of the elements of each segment.

    .. math:: out_s = \max_{i: idx_i = s} \lVert x_i \rVert

    A NaN wins; ties go to the smallest i, which alone gets the gradient.

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments).
    num_segments : int
        Number of segments, M.

    Returns
    -------
    Tensor, shape (M,)
        0 for an empty segment and for one whose elements are all 0, with derivatives of any order 0 there,
        never NaN.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_max_norm
    >>> x = torch.tensor([[3., 4., 0.], [0., 3., 0.], [0., 0., 4.]])
    >>> idx = torch.tensor([0, 0, 1], dtype=torch.int32)
    >>> segmented_max_norm(x, idx, num_segments=2).tolist()
    [5.0, 4.0]
    """
    return _max_norm(x, idx, num_segments)[0]


def segmented_max(x: Tensor, idx: Tensor, num_segments: int, fill: float = 0.0) -> Tensor:
    r"""Largest value of each column in each segment.

    .. math:: out_{s, \ldots} = \max_{i: idx_i = s} x_{i, \ldots}

    A NaN wins; ties go to the smallest i, which alone gets the gradient.

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments).
    num_segments : int
        Number of segments, M.
    fill : float
        What an empty segment gets.

    Returns
    -------
    Tensor, shape (M, ...)
        Values of x, bit for bit; `fill` for an empty segment, with derivatives 0. The gradient of x is the segment's
        cotangent at the element that was chosen, 0 elsewhere; it does not depend on x, so second derivatives are 0.

    Raises
    ------
    TypeError
        If an argument is not a tensor, `num_segments` not an int, or `fill` not a number.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch import segmented_max
    >>> x = torch.tensor([[3., 4.], [5., 1.], [2., 8.]])
    >>> idx = torch.tensor([0, 0, 2], dtype=torch.int32)
    >>> segmented_max(x, idx, num_segments=3, fill=-1.0).tolist()
    [[5.0, 4.0], [-1.0, -1.0], [2.0, 8.0]]
    """
    return _max(x, idx, num_segments, fill)


def segmented_min(x: Tensor, idx: Tensor, num_segments: int, fill: float = 0.0) -> Tensor:
    r"""Smallest value of each column in each segment.

    .. math:: out_{s, \ldots} = \min_{i: idx_i = s} x_{i, \ldots}

    A NaN wins; ties go to the smallest i, which alone gets the gradient.

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted, values in [0, num_segments).
    num_segments : int
        Number of segments, M.
    fill : float
        What an empty segment gets.

    Returns
    -------
    Tensor, shape (M, ...)
        Values of x, bit for bit; `fill` for an empty segment, with derivatives 0. The gradient of x is the segment's
        cotangent at the element that was chosen, 0 elsewhere; it does not depend on x, so second derivatives are 0.

    Raises
    ------
    TypeError
        If an argument is not a tensor, `num_segments` not an int, or `fill` not a number.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch import segmented_min
    >>> x = torch.tensor([[3., 4.], [5., 1.], [2., 8.]])
    >>> idx = torch.tensor([0, 0, 2], dtype=torch.int32)
    >>> segmented_min(x, idx, num_segments=3, fill=float("inf")).tolist()
    [[3.0, 1.0], [inf, inf], [2.0, 8.0]]
    """
    return _min(x, idx, num_segments, fill)


def segmented_mul(x: Tensor, y: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Each element times the scalar of its segment.

    .. math:: out_i = x_i \, y_{idx_i}

    Parameters
    ----------
    x : Tensor, shape (N, ...), float32, float64, float16 or bfloat16
        One row per element.
    y : Tensor, shape (M,), of the dtype of x
        One scalar per segment.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted (an unsorted idx raises), values in [0, num_segments).
    num_segments : int
        Number of segments, M; must be `y.shape[0]`.

    Returns
    -------
    Tensor, shape (N, ...)
        Gradients of x and y, of any order.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_mul
    >>> x = torch.tensor([1., 2., 3.])
    >>> y = torch.tensor([10., 100.])
    >>> idx = torch.tensor([0, 0, 1], dtype=torch.int32)
    >>> segmented_mul(x, y, idx, num_segments=2).tolist()
    [10.0, 20.0, 300.0]
    """
    return _mul(x, y, idx, num_segments)


def segmented_matvec(v: Tensor, m: Tensor, idx: Tensor, num_segments: int) -> Tensor:
    r"""Each element times the transposed matrix of its segment.

    .. math:: out_{ij} = \sum_k m_{idx_i, k, j} \, v_{ik}

    Note the transpose: with m a rotation matrix, the elements are rotated by its inverse.

    Parameters
    ----------
    v : Tensor, shape (N, K), float32, float64, float16 or bfloat16
        One vector per element.
    m : Tensor, shape (M, K, J), of the dtype of v
        One matrix per segment.
    idx : Tensor, shape (N,), int32 or int64
        Segment of each element, sorted (an unsorted idx raises), values in [0, num_segments).
    num_segments : int
        Number of segments, M; must be `m.shape[0]`.

    Returns
    -------
    Tensor, shape (N, J)
        Added over k in ascending order in float64 and rounded once. Gradients of v and m, of any order.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or `num_segments` not an int.
    ValueError
        If a dtype, shape or device does not fit, or idx is out of range or not sorted.

    Examples
    --------
    >>> import torch
    >>> from segmentops.torch.segment_ops import segmented_matvec
    >>> v = torch.tensor([[1., 0., 0.], [0., 1., 0.]])
    >>> m = torch.arange(9.).reshape(1, 3, 3)
    >>> idx = torch.tensor([0, 0], dtype=torch.int32)
    >>> segmented_matvec(v, m, idx, num_segments=1).tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    return _matvec(v, m, idx, num_segments)


for _name in __all__:
    scriptable(globals()[_name])
