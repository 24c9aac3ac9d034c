# SPDX-License-Identifier: Apache-2.0
"""Random calls: every function, any idx, any values, any number of threads, arrays that end where their memory ends.

What must hold: the verdict is that of one thread; a call that refuses its idx writes nothing; otherwise every output is
written wholly, whatever was in it before, and has the same bits on one thread and on many, with operands in one piece
and with operands of any strides. (A reduction over an idx that is not sorted may give anything, as long as it touches
nothing else.) What a call touches is for `place`, the surrounding zones and the sanitizers to say:
`scripts/sanitize.sh` runs this file on an engine built with them.
"""

from __future__ import annotations

import zlib

import numpy as np
from native.harness import DTYPES, MAXIMA, OPS, call, kind, mode_of, shape

from segmentops import native

NAMES = [*OPS, *MAXIMA, "check", "count"]
SIZES = [64, 128, 256, 257, 512, 4096, 8192, 16384, 70_000]  # around those that the code knows
WIDTHS = [0, 1, 1, 1, 2, 3, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 40]
THREADS = [1, 2, 3, 8, 33, 64, 100]


def draw_lengths(g, n):
    """Lengths of runs that make up n."""
    while n > 0:
        length = int(g.choice([1, 2, g.integers(1, 9), g.integers(1, 70), g.choice(SIZES) + g.integers(-2, 3)]))
        yield (length := min(length, n))
        n -= length


def draw_idx(g, n, m):
    """idx, and whether it is sorted."""
    kind = g.choice([np.int32, np.int64])
    ends = np.iinfo(kind)
    style = g.integers(7)
    if style < 3:  # runs one after the other; now and then a gap; partly below 0 or from m on
        lengths = list(draw_lengths(g, n))
        steps = g.choice([1, 1, 1, 2, g.integers(1, 40)], len(lengths)) if style else np.ones(len(lengths), int)
        where = np.cumsum(steps) - 1 + (0 if style < 2 else g.integers(-len(lengths) - 1, 2))
        idx = np.repeat(where, lengths)
    elif style == 3:
        idx = g.integers(-m // 4, m + m // 4 + 1, n)
    elif style == 4:
        idx = g.integers(ends.min, ends.max, n, dtype=kind, endpoint=True)
    else:
        idx = g.choice(np.clip([ends.min, -(2**40), -1, 0, m - 1, m, m + 7, 2**31, 2**33, ends.max], *ends_of(kind)), n)
    idx = np.clip(idx, *ends_of(kind)).astype(kind)
    if g.integers(4):
        idx.sort()
    if n and not g.integers(8):
        idx[g.integers(n)] = g.choice([ends.min, ends.max, m])
    return idx, bool((idx[1:] >= idx[:-1]).all())


def ends_of(kind):
    return np.iinfo(kind).min, np.iinfo(kind).max


def draw_values(g, size, dtype):
    """Numbers of all sizes; or with NaN and infinities; or any bits."""
    if np.issubdtype(dtype, np.integer):  # positions of maxima: of elements, each once at most, and others
        at = g.permuted(np.broadcast_to(np.arange(-3, 2 * size[0] + 3), (*size[1:], 2 * size[0] + 6)), axis=-1)
        at = np.moveaxis(at[..., : size[0]], -1, 0)
        return np.where(g.random(size) < 0.1, g.choice(ends_of(dtype), size), at).astype(dtype)
    x = g.standard_normal(size)
    if (style := g.integers(4)) == 1:
        x *= np.exp2(g.integers(-300, 300, size))
    if style == 2:
        x[g.random(size) < 0.1] = g.choice([np.nan, np.inf, -np.inf])
    if style == 3:
        return g.integers(0, 256, (*size, np.dtype(dtype).itemsize), np.uint8).view(dtype).reshape(size)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def draw_layout(g):
    """Puts an operand anywhere: any order of its dimensions, steps, directions; repeated where it repeats itself."""
    seed = int(g.integers(1 << 30))

    def layout(array, place):
        g = np.random.default_rng([seed, *array.shape])
        if array.ndim == 2 and array.shape[1] % 2 == 0 and g.integers(2):  # several dimensions make up a row
            array = array.reshape(len(array), 2, array.shape[1] // 2)
        order = g.permutation(array.ndim)
        steps = [int(step) for step in g.choice([-3, -2, -1, 1, 1, 1, 2, 5], array.ndim)]
        sizes = [1 + (size - 1) * abs(step) if size else 0 for size, step in zip(array.shape, steps, strict=True)]
        sizes = [1 if expanded(array, d) else size for d, size in enumerate(sizes)]
        memory = place(np.zeros([sizes[d] for d in order], array.dtype))
        view = memory.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
        view[tuple(slice(None, size) for size in view.shape)] = array[tuple(slice(None, size) for size in view.shape)]
        return np.broadcast_to(view, array.shape)

    return layout


def expanded(array, d):
    """Whether it repeats itself along a dimension."""
    if array.size == 0 or array.shape[d] < 2:
        return False
    one = array.take([0], d)
    return array.tobytes() == np.broadcast_to(one, array.shape).tobytes()


def canonical(x):
    """Bytes in which one NaN is like another."""
    x = x.copy()
    if not np.issubdtype(x.dtype, np.integer):
        with np.errstate(invalid="ignore"):  # a signalling one
            x[np.isnan(x)] = np.nan
    return x.tobytes()


def case(seed, place, sort=False):
    """One random call; a checksum of what it gives, 0 where that is not specified. `sort`: never unspecified."""
    g = np.random.default_rng(seed)
    name, suffix = str(g.choice(NAMES)), str(g.choice(list(DTYPES)))
    dtype = DTYPES[suffix]
    n = int(g.choice([g.integers(0, 40), g.integers(0, 400), g.choice(SIZES) + g.integers(-9, 10)], p=[0.4, 0.3, 0.3]))
    k, j = (int(g.choice(WIDTHS)) for _ in range(2))
    if n * k > 300_000:
        k = 3
    m = int(g.choice([0, 1, 2, 7, 8, n // 50 + 1, n // 3 + 1, n + 1, 3 * n + 5]))
    if m * k * j > 500_000:
        j = 2
    idx, in_order = draw_idx(g, n, m)
    if sort and not in_order:
        idx.sort()
        in_order = True
    threads = [1, int(g.choice(THREADS))]
    if g.integers(8) == 0 and n:  # rows wider than what is copied at a time
        n, k, m = min(n, 40), int(g.choice([8200, 9001])), min(m, 40)
        j, idx = 1 if m * k > 100_000 else int(g.integers(1, 10)), idx[:n]
    what = dict(seed=seed, name=name, suffix=suffix, n=n, m=m, k=k, j=j, idx=idx.dtype, threads=threads[1])
    if name in ("check", "count"):
        return native_case(name, idx, m, threads, in_order, place, what)
    o = (OPS | MAXIMA)[name]
    check, narrow_at = bool(g.integers(2)), bool(g.integers(2))
    want = {key for key in o.optional if g.integers(4)}
    inputs = {
        key: draw_values(g, shape(spec, n, m, k, j), kind(spec, dtype, narrow_at)) for key, spec in o.inputs.items()
    }
    for key, x in inputs.items():
        if "/" not in o.inputs[key] and x.size and not g.integers(4):  # the same again and again, along a dimension
            d = int(g.integers(x.ndim))
            inputs[key] = np.ascontiguousarray(np.broadcast_to(x.take([0], d), x.shape))
    layouts = [None, draw_layout(g) if g.integers(2) else None]
    results = [
        call(name, inputs, idx, m, k, j, threads=t, check=check, narrow_at=narrow_at, want=want, place=place, poison=p,
             layout=layout)
        for t, p, layout in zip(threads, (0xA5, 0x5A), layouts, strict=True)
    ]  # fmt: skip
    if check:
        verdicts = [verdict for verdict, _ in results]
        results = [{key: out[key] for key in out if key in o.outputs} for _, out in results]
        assert verdicts[0] == verdicts[1] and ("idx" in o.order.split() or verdicts[0] == -1), (what, verdicts)
        if verdicts[0] >= 0:
            written = [key for key, out in results[0].items() if not (out.reshape(-1).view(np.uint8) == 0xA5).all()]
            assert not written, (what, written)
            return verdicts[0]
    if not in_order and o.reduces:
        return 0
    one, many = ({key: canonical(out) for key, out in outs.items()} for outs in results)
    differ = [key for key in one if one[key] != many[key]]
    assert not differ, (what, differ)
    return zlib.crc32(b"".join(one.values()))


def native_case(name, idx, m, threads, in_order, place, what):
    """`check` and `count`, which take no data."""
    found, counts = [], []
    for t in threads:
        at = place(idx)
        out = place(np.full(m, 7 * t, np.int32))
        arrays = [at.ctypes.data, out.ctypes.data][: 1 + (name == "count")]
        found.append(getattr(native.load(), name)(*arrays, len(idx), m, mode_of(idx, t)))
        counts.append(out.copy())
    assert found[0] == found[1] and (name == "check" or found[0] == -1), (what, found)
    if name == "count" and in_order:
        inside = idx[(idx >= 0) & (idx < m)].astype(np.int64)
        assert all((c == np.bincount(inside, minlength=m)[:m]).all() for c in counts), what
    return found[0] + 1
