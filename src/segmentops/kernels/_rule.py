# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: UP018  int(1) makes a variable that a Warp loop may change
"""The association rule as Warp functions: what fixes the bits of a reduced segment.

Items are counted from the first one of the segment; lanes are float64.

- row: 8 items; block: 8 rows, added lane by lane as a tree; a missing item is a zero lane
- super: 4096 items (for more than 64 supers the power of two >= n / 64); its blocks are added lane
  by lane, in order, for float64 data by TwoSum with an error lane; then the lanes as a tree
- the supers of a segment are added in order by TwoSum; then high + low + 0.0
- a mean of float64 data makes the same high parts, and every addition leaves its error in the low part

A lane value is a float64, a vec3d (three columns at once), either with its error as the second row
of a matrix or, for maxima, a vec2d (value, position). The functions are overloaded on it, so one
skeleton serves sums, means and maxima.
"""

from typing import Any

import warp as wp

ROW = wp.constant(8)
BLOCK = wp.constant(64)
SUPER = wp.constant(4096)
MAX_SUPERS = wp.constant(64)
LONGEST_STEP = wp.constant(1 << 29)  # of a gallop: twice this still fits 32 bits

# Functions and kernels in these files are compiled into modules of their own (see _registry);
# contraction is switched off there, so that CPU and CUDA give the same bits.


@wp.func
def super_size(items: int):
    """Items in a super of a segment of `items` items."""
    size = SUPER
    while size < (items + MAX_SUPERS - 1) // MAX_SUPERS:
        size = size * 2
    return size


# There may be 2**31 - 4097 items, and supers are powers of two: what is beyond the last item need not fit 32 bits.
@wp.func
def ceil_div(a: int, b: int):
    """a / b, rounded up, for a >= 0 and b > 0."""
    q = a // b
    return q + wp.where(q * b < a, 1, 0)


@wp.func
def super_end(number: int, size: int, items: int):
    """Where a super ends."""
    first = number * size
    return first + wp.min(size, items - first)


# ------------------------------------------------------------------ lane values
vec1d = wp.types.vector(length=1, dtype=wp.float64)
Careful1 = wp.types.matrix(shape=(2, 1), dtype=wp.float64)
Careful3 = wp.types.matrix(shape=(2, 3), dtype=wp.float64)


@wp.func
def better(a: wp.vec2d, b: wp.vec2d):
    """The larger of two (value, position); a NaN wins, ties go to the smaller position."""
    a_nan = a[0] != a[0]
    b_nan = b[0] != b[0]
    tie = a[0] == b[0] or (a_nan and b_nan)
    return wp.where(b[0] > a[0] or (b_nan and not a_nan) or (tie and b[1] < a[1]), b, a)


@wp.func
def plus(a: wp.float64, b: wp.float64):
    return a + b


@wp.func
def plus(a: wp.vec3d, b: wp.vec3d):  # noqa: F811
    return a + b


@wp.func
def plus(a: wp.vec2d, b: wp.vec2d):  # noqa: F811
    return better(a, b)


@wp.func
def two_sum(hi: Any, lo: Any, v: Any):
    s = hi + v
    b = s - hi
    return s, lo + ((hi - (s - b)) + (v - b))


@wp.func
def plus(a: Careful1, b: Careful1):  # noqa: F811
    hi, lo = two_sum(a[0], a[1] + b[1], b[0])
    return wp.matrix_from_rows(hi, lo)


@wp.func
def plus(a: Careful3, b: Careful3):  # noqa: F811
    hi, lo = two_sum(a[0], a[1] + b[1], b[0])
    return wp.matrix_from_rows(hi, lo)


@wp.func
def careful(v: wp.float64):
    return wp.matrix_from_rows(vec1d(v), vec1d(wp.float64(0.0)))


@wp.func
def careful(v: wp.vec3d):  # noqa: F811
    return wp.matrix_from_rows(v, missing3())


@wp.func
def missing1():
    return wp.float64(0.0)


@wp.func
def missing3():
    return wp.vec3d(wp.float64(0.0), wp.float64(0.0), wp.float64(0.0))


@wp.func_native("""
    const uint64_t bits = 0x7ff0000000000000ull;
    double v;
    memcpy(&v, &bits, sizeof(v));
    return v;
""")
def infinity() -> wp.float64: ...  # Warp's own is a float32 literal, which NVRTC warns about


@wp.func
def missing_position():
    return wp.vec2d(-infinity(), infinity())


@wp.func
def missing_careful1():
    return Careful1()


@wp.func
def missing_careful3():
    return Careful3()


# The lane value of an item that is not there.
MISSING = {
    wp.float64: missing1,
    wp.vec3d: missing3,
    wp.vec2d: missing_position,
    Careful1: missing_careful1,
    Careful3: missing_careful3,
}


@wp.func
def total(hi: wp.float64, lo: wp.float64):
    """high + low; after an overflow or an infinity low is NaN, and the sum is what the plain sum says."""
    r = hi
    if lo == lo:
        r = hi + lo
    return r + wp.float64(0.0)


@wp.func
def pair(hi: wp.float64, lo: wp.float64, column: int):
    """What is kept of a super for one column."""
    return wp.vec2d(hi, lo)


@wp.func
def pair(hi: wp.vec3d, lo: wp.vec3d, column: int):  # noqa: F811
    return wp.vec2d(hi[column], lo[column])


@wp.func
def pair(hi: Careful1, lo: Careful1, column: int):  # noqa: F811
    return wp.vec2d(hi[0, 0], hi[1, 0])


@wp.func
def pair(hi: Careful3, lo: Careful3, column: int):  # noqa: F811
    return wp.vec2d(hi[0, column], hi[1, column])


@wp.func
def pair(hi: wp.vec2d, lo: wp.vec2d, column: int):  # noqa: F811
    return hi


@wp.func
def add_super(a: wp.vec2d, b: wp.vec2d):
    s, e = two_sum(a[0], a[1], b[0])
    return wp.vec2d(s, e + b[1])


LARGE = wp.constant(wp.float64(2.0**990))  # above, parts of a product might overflow,
SMALL = wp.constant(wp.float64(2.0**-40))  # unless they are made smaller


@wp.func
def plain_mean(hi: wp.float64, lo: wp.float64, n: wp.float64):
    return total(hi, lo) / n


@wp.func
def split(v: wp.float64):
    """v in two parts of 26 bits."""
    c = v * wp.float64(134217729.0)
    high = c - (c - v)
    return high, v - high


@wp.func
def careful_mean(hi: wp.float64, lo: wp.float64, n: wp.float64):
    """(hi + lo) / n: the quotient q of hi and n, corrected by what is left, hi - q n (a number, if q is rounded) + lo.

    The product is made of parts: a fused one would be one more contraction to whoever looks for them.
    """
    q = (hi + wp.float64(0.0)) / n
    scale = wp.where(wp.abs(q) > LARGE, SMALL, wp.float64(1.0))
    s = q * scale
    p = s * n
    qh, ql = split(s)
    nh, nl = split(n)
    e = ((qh * nh - p) + qh * nl + ql * nh) + ql * nl
    r = ((hi * scale - p) - e) / scale
    if lo == lo:
        r = r + lo
    c = r / n
    if c == c:
        q = q + c
    return q


# ------------------------------------------------------------------ memory
# x[i, k] as float64. Warp's own indexing lets an index count from the end, which costs a branch a load.
_LOAD = """
    const auto* p = reinterpret_cast<const char*>(x.data) + int64_t(i) * x.strides[0] + int64_t(k) * x.strides[1];
    return static_cast<double>(static_cast<%s>(*reinterpret_cast<decltype(x.data)>(const_cast<char*>(p))));
"""


@wp.func_native(_LOAD % "float")
def load(x: wp.array2d(dtype=wp.float32), i: int, k: int) -> wp.float64: ...


@wp.func_native(_LOAD % "double")
def load(x: wp.array2d(dtype=wp.float64), i: int, k: int) -> wp.float64: ...  # noqa: F811


@wp.func_native(_LOAD % "float")
def load(x: wp.array2d(dtype=wp.float16), i: int, k: int) -> wp.float64: ...  # noqa: F811


@wp.func_native(_LOAD % "float")
def load(x: wp.array2d(dtype=wp.bfloat16), i: int, k: int) -> wp.float64: ...  # noqa: F811


# ------------------------------------------------------------------ runs of a sorted idx
@wp.func
def add_scalar(hi: wp.float64, lo: wp.float64, v: wp.float64, columns: int):
    """One more scalar of a row, in ascending order; beyond three columns by TwoSum."""
    if columns > 3:
        hi, lo = two_sum(hi, lo, v)
    else:
        hi = hi + v
    return hi, lo


@wp.func
def run_end(idx: wp.array(dtype=Any), i: int, n: int):
    """First position after i whose segment is not idx[i]: look near, gallop, bisect."""
    s = idx[i]
    lo = i
    step = int(1)
    while step < n - lo and idx[lo + step] == s:
        lo = lo + step
        step = wp.min(step * 2, LONGEST_STEP)
    hi = n
    if step < n - lo:
        hi = lo + step
    while hi - lo > 1:
        mid = lo + (hi - lo) // 2
        if idx[mid] == s:
            lo = mid
        else:
            hi = mid
    return hi


@wp.func
def run_start(idx: wp.array(dtype=Any), i: int):
    """First position of the run that position i is in."""
    s = idx[i]
    hi = i
    step = int(64)
    while step <= hi and idx[hi - step] == s:
        hi = hi - step
        step = wp.min(step * 2, LONGEST_STEP)
    lo = hi - step
    if lo < -1:
        lo = -1
    while hi - lo > 1:
        mid = lo + (hi - lo) // 2
        if idx[mid] == s:
            hi = mid
        else:
            lo = mid
    return hi


# ------------------------------------------------------------------ rounding once
@wp.func_native("""
    // Rounds to odd in float32, so that the second rounding, to 8 or 11 bits, is the only one that counts.
    float f = static_cast<float>(v);
    const double back = static_cast<double>(f);
    if (back != v && f == f && back - back == 0.0) {
        unsigned bits;
        memcpy(&bits, &f, sizeof(bits));
        if ((back < 0.0 ? -back : back) > (v < 0.0 ? -v : v)) bits -= 1u;
        bits |= 1u;
        memcpy(&f, &bits, sizeof(f));
    }
    return f;
""")
def to_odd(v: wp.float64) -> wp.float32: ...


# How 1 / (out count) is kept. Of subnormal data float32 has no such number, of very large data a subnormal one with few
# digits: these are kept as -2^-24 and -2^48 times themselves.
LARGEST_FLOAT32 = wp.constant(wp.float64(2.0**128 - 2.0**104))
SMALLEST_FLOAT32 = wp.constant(wp.float64(2.0**-126))
CODE_OF_LARGE = wp.constant(wp.float64(-(2.0**-24)))
CODE_OF_SMALL = wp.constant(wp.float64(-(2.0**48)))
LARGE_CODES = wp.constant(wp.float64(-(2.0**100)))  # are below
SMALL_CODES = wp.constant(wp.float64(-(2.0**-77)))  # are above


@wp.func
def encoded(v: wp.float64, like: wp.float64):
    return v


@wp.func
def encoded(v: wp.float64, like: wp.float32):  # noqa: F811
    code = v
    if v > LARGEST_FLOAT32:
        code = v * CODE_OF_LARGE
    elif v > wp.float64(0.0) and v < SMALLEST_FLOAT32:
        code = v * CODE_OF_SMALL
    return wp.float32(code)


@wp.func
def decoded(v: wp.float64):
    value = v
    if v < LARGE_CODES:
        value = v / CODE_OF_LARGE
    elif v < wp.float64(0.0) and v > SMALL_CODES:
        value = v / CODE_OF_SMALL
    return value


@wp.func
def rounded(v: wp.float64, like: wp.float64):
    return v


@wp.func
def rounded(v: wp.float64, like: wp.float32):  # noqa: F811
    return wp.float32(v)


@wp.func
def rounded(v: wp.float64, like: wp.float16):  # noqa: F811
    return wp.float16(to_odd(v))


@wp.func
def rounded(v: wp.float64, like: wp.bfloat16):  # noqa: F811
    return wp.bfloat16(to_odd(v))
