# SPDX-License-Identifier: Apache-2.0
"""More than 2**31 elements, in little memory: positions, lengths and offsets are 64-bit integers everywhere.

Inputs are mappings that nobody has written to: all zero, and without memory of their own, but for the few pages that a
test writes to. Outputs with a row for each element are one small piece of memory, mapped again and again. So a
reduction over 2**31 numbers costs a second and no memory.
"""

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest
from native.harness import LIBC, mode_of, slow

from segmentops import native

pytestmark = [slow, pytest.mark.skipif(sys.platform != "linux", reason="Linux")]

N = 2**31 + 77
PIECE = 1 << 26
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def zeros(n, dtype):
    """n zeros, without memory until they are written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    area = mmap.mmap(-1, n * np.dtype(dtype).itemsize, flags)
    return np.frombuffer(area, dtype)


def repeated(n, dtype):
    """Room for n numbers: PIECE bytes of memory again and again, and others at the end. And the PIECE, as numbers."""
    size = n * np.dtype(dtype).itemsize
    whole = -(-size // PIECE) * PIECE
    area = mmap.mmap(-1, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    memory = os.memfd_create("piece")
    os.ftruncate(memory, PIECE)
    array = np.frombuffer(area, np.uint8)
    for start in range(0, whole - PIECE, PIECE):
        at = LIBC.mmap(array.ctypes.data + start, PIECE, mmap.PROT_READ | mmap.PROT_WRITE,
                       mmap.MAP_SHARED | MAP_FIXED, memory, 0)  # fmt: skip
        assert at == array.ctypes.data + start
    os.close(memory)
    piece = array[:PIECE].view(dtype)
    piece[:] = 9
    return array[:size].view(dtype), piece


def peak():
    """The most memory that the process has had, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


@pytest.fixture
def little_memory():
    """Of its own: what is mapped twice is counted twice, so only for tests without `repeated`."""
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")  # forget the peak
    before = peak()
    yield
    assert peak() - before < 1 << 30


def run(name, *arguments, threads=2, wide=False, narrow_at=False):
    """Call a function of the engine; the last arguments are its sizes."""
    mode = mode_of(np.zeros(0, np.int64 if wide else np.int32), threads, narrow_at=narrow_at)
    addresses = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    assert getattr(native.load(), name)(*addresses, mode) == -1


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_reductions_of_one_column(wide, threads):
    """Segment 0 has 2**31 + 70 elements, 5 has seven."""
    x, idx = zeros(N, np.float32), zeros(N, np.int64 if wide else np.int32)
    idx[-7:] = 5
    x[3], x[2**31 - 1], x[2**31 + 60], x[-1] = 1, 2, 4, 8
    out, counts, at = np.full(6, 9, np.float32), np.full(6, 9, np.int32), np.full(6, 9)
    run("sum_f32", x, idx, out, N, 6, 1, threads=threads, wide=wide)
    assert out.tolist() == [7, 0, 0, 0, 0, 8]
    run("mean_f32", x, idx, out, None, None, N, 6, 1, threads=threads, wide=wide)
    assert out.tolist() == [np.float32(7 / (N - 7)), 0, 0, 0, 0, np.float32(8 / 7)]
    run("dot_f32", x, x, idx, out, N, 6, 1, threads=threads, wide=wide)
    assert out.tolist() == [21, 0, 0, 0, 0, 64]
    run("rms_norm_f32", x, idx, out, None, None, None, N, 6, 1, threads=threads, wide=wide)
    np.testing.assert_allclose(out, np.sqrt([21 / (N - 7), 0, 0, 0, 0, 64 / 7]), rtol=1e-7)
    run("max_norm_f32", x, idx, out, at, N, 6, 1, threads=threads, wide=wide)
    assert out.tolist() == [4, 0, 0, 0, 0, 8] and at.tolist() == [2**31 + 60, -1, -1, -1, -1, N - 1]
    idx[-9] = 7  # counted from behind 2**31, too; and descending, which the check finds
    idx[-8:] = 7
    counts = np.full(8, 9, np.int32)
    run("count", idx[100:], counts, N - 100, 8, threads=threads, wide=wide)
    assert counts[5:].tolist() == [0, 0, 9]


@pytest.mark.parametrize("wide", [False, True])
def test_the_check(wide):
    idx = zeros(N, np.int64 if wide else np.int32)
    check = native.load().check
    for position, value, m, found in (
        (N - 1, 3, 4, -1),
        (N - 1, 3, 3, N - 1),
        (2**31 + 5, 2, 4, 2**31 + 6),
    ):
        idx[position] = value
        assert check(idx.ctypes.data, N, m, mode_of(idx, 2)) == found
        idx[position] = 0


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("k, suffix, dtype", [(3, "f32", np.float32), (3, "f64", np.float64), (40, "f16", np.float16)])
def test_reductions_of_many_columns(k, suffix, dtype):
    """Fewer than 2**31 elements, more than 2**31 scalars."""
    n = N // k + 100
    x, idx = zeros(n * k, dtype), zeros(n, np.int32)
    idx[-50:] = 2
    rows = x.reshape(n, k)
    rows[-51, k - 1], rows[-50, 0], rows[-1, k - 1], rows[4, 1] = 2, 3, 4, 5
    out = np.full((3, k), 9, dtype)
    run(f"sum_{suffix}", x, idx, out, n, 3, k)
    want = np.zeros((3, k))
    want[0, k - 1], want[0, 1], want[2, 0], want[2, k - 1] = 2, 5, 3, 4
    np.testing.assert_array_equal(out, want)
    if k > 3:
        return  # the same code, and slow
    dots = np.full(3, 9, dtype)
    run(f"dot_{suffix}", x, x, idx, dots, n, 3, k)
    assert dots.tolist() == [29, 0, 25]
    at = np.full(3, 9)
    run(f"max_norm_{suffix}", x, idx, dots, at, n, 3, k)
    assert dots.tolist() == [5, 0, 4] and at.tolist() == [4, -1, n - 1]


@pytest.mark.parametrize("wide", [False, True])
def test_outputs_of_one_column(wide):
    idx, y = zeros(N, np.int64 if wide else np.int32), np.array([2, 4, 8], np.float16)
    idx[-20:] = 2
    out, piece = repeated(N, np.float16)

    def check(first, last):
        assert (out[-20:] == last).all() and (out[-21000:-20] == first).all() and (piece == 9).sum() == 0
        piece[:] = 9

    run("broadcast_f16", y, idx, out, N, 3, 1, wide=wide)
    check(2, 8)
    scratch = np.zeros(3, np.float16)
    run("spread_f16", y * 160, idx, out, scratch, N, 3, 1, wide=wide)
    check(np.float16(320 / (N - 20)), 64)
    x = zeros(N, np.float16)
    x[-30:] = 3
    run("mul_f16", x, y, idx, out, N, 3, 1, wide=wide)
    assert out[-31:].tolist() == [0, *[6] * 10, *[24] * 20]
    piece[:] = 9
    gs = np.full(3, 9, np.float16)
    run("mul_backward_f16", x, x, y, idx, out, gs, N, 3, 1, wide=wide)
    assert out[-31:].tolist() == [0, *[6] * 10, *[24] * 20] and gs.tolist() == [90, 0, 180]


@pytest.mark.parametrize("k, suffix, dtype", [(3, "f32", np.float32), (17, "f16", np.float16)])
def test_outputs_of_many_columns(k, suffix, dtype):
    n = N // k + 100
    idx, out = zeros(n, np.int32), repeated(n * k, dtype)[0]
    idx[-20:] = 2
    x = zeros(n * k, dtype)
    x[-25 * k :] = np.arange(25 * k) % 11
    tail = x[-25 * k :].copy().reshape(25, k)
    scale = np.array([2, 4, 8], dtype)
    y = np.arange(3 * k).astype(dtype).reshape(3, k)
    run(f"broadcast_{suffix}", y, idx, out, n, 3, k)
    np.testing.assert_array_equal(out[-25 * k :].reshape(25, k), y[idx[-25:]])
    run(f"mul_{suffix}", x, scale, idx, out, n, 3, k)
    np.testing.assert_array_equal(out[-25 * k :].reshape(25, k), tail * scale[idx[-25:]][:, None])
    if k > 3:
        return  # the same code, and slow
    mat = (np.arange(3 * k * k).reshape(3, k, k) % 3).astype(dtype)
    run(f"matvec_{suffix}", x, mat, idx, out, n, 3, k, k)
    np.testing.assert_array_equal(out[-25 * k :].reshape(25, k), np.einsum("nk,nkj->nj", tail, mat[idx[-25:]]))
    gx = out
    at = np.array([n - 21, -1, n - 1])
    g = np.ones(3, dtype)
    run(f"max_norm_backward_{suffix}", g, x, at, gx, n, 3, k)
    norms = np.sqrt((tail.astype(np.float64) ** 2).sum(1))
    got = gx[-25 * k :].reshape(25, k)
    np.testing.assert_allclose(got[[4, 24]], tail[[4, 24]] / norms[[4, 24], None], rtol=4 * np.finfo(dtype).eps)
    assert not got[5:24].any()
