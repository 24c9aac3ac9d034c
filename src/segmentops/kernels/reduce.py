# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: UP018  int(1) makes a variable that a Warp loop may change
"""Segment reductions: one skeleton in two shapes, an operation is a term.

A unit is one super (4096 items, or n / 64 of a longer segment) counted from a segment's start.

`serial`: a thread takes the units that start in its range of positions, for one column. It serves
wide data on CUDA, where neighbouring threads read neighbouring columns, and all data on the CPU.

`cooperative`: a thread block takes the units that start in its own 256 positions. Runs of at most one row are
summed by the thread that sits at their start, runs of a few blocks by eight threads, a lane each, so that
every load of a team is one sector; longer units by the whole thread block, 32 blocks at a time.

In both, work is bounded whatever the lengths: finished segments are written at once, units of longer
ones go to scratch, and `combine` adds them in order. There are no atomics.

Loads are of one scalar each, not of 16 bytes. A lane is an item's number in its segment, modulo 8, so a vector
would have to start at a multiple of four items from the segment's start, which lies anywhere in memory; and it
would give a thread four lanes of one row instead of one lane of eight rows, to be brought together through
shared memory in every block. The traffic is the same: each load of a team is a whole sector, and a thread has
eight of them on their way.
"""

from typing import Any

import warp as wp

from ._registry import KEPT, THREADS, family
from ._rule import (
    BLOCK,
    MISSING,
    SUPER,
    Careful1,
    Careful3,
    add_super,
    better,
    careful,
    careful_mean,
    ceil_div,
    encoded,
    load,
    pair,
    plain_mean,
    plus,
    rounded,
    run_end,
    run_start,
    super_end,
    super_size,
    total,
    two_sum,
)

TEAM = wp.constant(8)
ALONE = wp.constant(8)  # items that one thread sums: one row
TOGETHER = wp.constant(512)  # items that a team sums; above, the whole thread block does
SMALL_GAP = wp.constant(8)  # empty segments that one thread fills

A = wp.array2d(dtype=Any)
L = wp.array(dtype=wp.int32)


def A2(dtype: Any) -> Any:
    return wp.array2d(dtype=dtype)


# How a finished segment is written.
PLAIN, MEAN, RMS, WIDE, COLUMNS, NORM, MAX, MIN = (wp.constant(k) for k in range(8))


# ------------------------------------------------------------------ terms
# A term is the value of one item: position `row`, component `k` of what is read flat, column `c` of what is
# not; `j` is a number that the term may use.
@wp.func
def sum_term(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
    return load(x, row, k + c)


@wp.func
def dot_term(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
    return load(x, row, k) * load(y, row, k)


@wp.func
def dot_add_term(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
    return load(x, row, k) * load(y, row, k) + load(u, row, k) * load(w, row, k)


@wp.func
def inner_products_term(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
    """Columns xy, xx, yy."""
    a = load(x, row, k)
    b = load(y, row, k)
    return wp.where(c == 2, b, a) * wp.where(c == 1, a, b)


@wp.func
def outer_term(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
    """Column c is (c // j, c % j) of the matrix."""
    return load(x, row, c // j) * load(y, row, c % j)


@wp.func
def max_term(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
    """(the squared norm, x or -x; the position)."""
    v = wp.float64(0.0)
    if j == NORM:
        v = row_square(x, row)
    else:
        v = load(x, row, 0)
        if j == MIN:
            v = -v
    return wp.vec2d(v, wp.float64(row))


# name: term, lane value, columns that the cooperative kernel takes at a time
TERMS: dict[str, tuple[Any, Any, int]] = {
    "sum": (sum_term, wp.float64, 1),
    "sum3": (sum_term, wp.vec3d, 3),
    "mean": (sum_term, Careful1, 1),  # of float64 data
    "mean3": (sum_term, Careful3, 3),
    "dot": (dot_term, wp.float64, 1),
    "dot_add": (dot_add_term, wp.float64, 1),
    "inner_products": (inner_products_term, wp.vec3d, 3),
    "outer": (outer_term, wp.float64, 1),
    "outer3": (outer_term, wp.vec3d, 3),
    "max": (max_term, wp.vec2d, 1),
}


def _store(S: Any, extreme: bool) -> tuple[Any, Any]:
    """(how the value of a finished segment, a pair, is written; how an empty segment is written)."""
    K = KEPT[S]
    Out = A2(S)
    Kept = A2(K)
    Wide = A2(wp.float64)
    mean = careful_mean if S is wp.float64 else plain_mean

    @wp.func
    def store_sum(
        mode: int, s: int, c: int, v: wp.vec2d, count: int, out: Out, aux: Out, inv: Kept, wide: Wide, counts: L
    ):
        value = total(v[0], v[1])
        if mode == WIDE:
            wide[s, c] = value
        elif mode == COLUMNS:
            r = rounded(value, S(0.0))
            if c == 0:
                out[s, 0] = r
            elif c == 1:
                aux[s, 0] = r
            else:
                inv[s, 0] = rounded(value, K(0.0))
        else:
            if aux.shape[0] > 0:
                aux[s, c] = rounded(value, S(0.0))
            if mode == MEAN:
                value = mean(v[0], v[1], wp.float64(count))
            if mode == RMS:
                value = wp.sqrt(value / wp.float64(count))
                if inv.shape[0] > 0:
                    i = value
                    if value != wp.float64(0.0):
                        i = wp.float64(1.0) / (value * wp.float64(count))
                    inv[s, c] = encoded(i, K(0.0))
            out[s, c] = rounded(value, S(0.0))
        if counts.shape[0] > 0 and c == 0:
            counts[s] = count

    @wp.func
    def store_extreme(
        mode: int, s: int, c: int, v: wp.vec2d, count: int, out: Out, aux: Out, inv: Kept, wide: Wide, counts: L
    ):
        if mode == NORM:
            out[s, 0] = rounded(wp.sqrt(v[0]), S(0.0))
            if counts.shape[0] > 0:
                counts[s] = int(v[1])
        else:
            sign = wp.where(mode == MIN, wp.float64(-1.0), wp.float64(1.0))
            best = better(wp.vec2d(sign * load(out, s, 0), wp.float64(-1.0)), v)
            out[s, 0] = rounded(sign * best[0], S(0.0))

    @wp.func
    def store_empty(mode: int, s: int, c: int, out: Out, aux: Out, inv: Kept, wide: Wide, counts: L):
        if mode != MAX and mode != MIN:
            k = wp.where(mode == COLUMNS, 0, c)
            if out.shape[0] > 0:
                out[s, k] = S(0.0)
            if aux.shape[0] > 0:
                aux[s, k] = S(0.0)
            if inv.shape[0] > 0:
                inv[s, k] = K(0.0)
            if wide.shape[0] > 0:
                wide[s, k] = wp.float64(0.0)
            if counts.shape[0] > 0 and c == 0:
                counts[s] = wp.where(mode == NORM, -1, 0)

    return (store_extreme if extreme else store_sum), store_empty


@wp.func
def unchanged(v: Any):
    return v


def _functions(term: Any, V: Any, columns: int, S: Any) -> tuple[Any, Any, Any]:
    """(item, lane of a block, accumulate) for a term."""
    missing = MISSING[V]

    if columns == 1:

        @wp.func
        def item(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
            return term(x, y, u, w, row, k, c, j)

    else:

        @wp.func
        def item(x: A, y: A, u: A, w: A, row: int, k: int, c: int, j: int):
            return wp.vec3d(
                term(x, y, u, w, row, k, c, j), term(x, y, u, w, row, k, c + 1, j), term(x, y, u, w, row, k, c + 2, j)
            )

    lane_of = careful if V in (Careful1, Careful3) else unchanged

    @wp.func
    def at(x: A, y: A, u: A, w: A, start: int, f: int, stop: int, rows: int, flat: int, c: int, j: int):
        """Item f of the segment that starts at element `start`: zero from `stop` on."""
        v = missing()
        if f < stop:
            row = start * rows + f
            k = int(0)
            if flat > 1:
                row = start + f // flat
                k = f % flat
            v = lane_of(item(x, y, u, w, row, k, c, j))
        return v

    @wp.func
    def lane(x: A, y: A, u: A, w: A, start: int, f: int, stop: int, rows: int, flat: int, c: int, j: int):
        """One lane of a block: items f, f + 8, ... f + 56, as a tree."""
        v = at(x, y, u, w, start, f, stop, rows, flat, c, j)
        if f + 8 < stop:
            v = plus(v, at(x, y, u, w, start, f + 8, stop, rows, flat, c, j))
        if f + 16 < stop:
            p = at(x, y, u, w, start, f + 16, stop, rows, flat, c, j)
            q = at(x, y, u, w, start, f + 24, stop, rows, flat, c, j)
            v = plus(v, plus(p, q))
        if f + 32 < stop:
            p0 = at(x, y, u, w, start, f + 32, stop, rows, flat, c, j)
            p1 = at(x, y, u, w, start, f + 40, stop, rows, flat, c, j)
            p2 = at(x, y, u, w, start, f + 48, stop, rows, flat, c, j)
            p3 = at(x, y, u, w, start, f + 56, stop, rows, flat, c, j)
            v = plus(v, plus(plus(p0, p1), plus(p2, p3)))
        return v

    if S is wp.float64 and V in (wp.float64, wp.vec3d):

        @wp.func
        def accumulate(hi: V, lo: V, v: V):
            return two_sum(hi, lo, v)

    else:

        @wp.func
        def accumulate(hi: V, lo: V, v: V):
            return plus(hi, v), lo

    return at, lane, accumulate


@wp.func
def leaf(k: int, near: int):
    """The lane at leaf k of the lane tree: neighbours first if near (flat, or of width 1), else e with e + 4."""
    if near == 1:
        return k
    return (k & 1) * 4 + (k & 2) + (k >> 2)


@wp.func
def clamped(s: Any, m: int):
    """A segment number brought into -1 ... m, so that a number next to it does not overflow."""
    return int(wp.clamp(s, type(s)(-1), type(s)(m)))


def _unit(term: Any, V: Any, S: Any) -> Any:
    """A super of a term by one thread."""
    _at, lane, accumulate = _functions(term, V, 1, S)
    missing = MISSING[V]

    @wp.func
    def unit(
        x: A, y: A, u: A, w: A, start: int, first: int, stop: int, rows: int, flat: int, near: int, c: int, j: int
    ):
        """A super, lane after lane. The lane tree is a binary counter: nothing is indexed, all stays in registers."""
        hi = missing()
        lo = missing()
        hi1 = missing()
        lo1 = missing()
        hi2 = missing()
        lo2 = missing()
        hi4 = missing()
        lo4 = missing()
        k = int(0)
        while k < 8:
            q = first + leaf(k, near)
            hi = missing()
            lo = missing()
            while q < stop:
                hi, lo = accumulate(hi, lo, lane(x, y, u, w, start, q, stop, rows, flat, c, j))
                q = q + BLOCK
            if k & 1:
                hi = plus(hi1, hi)
                lo = plus(lo1, lo)
                if k & 2:
                    hi = plus(hi2, hi)
                    lo = plus(lo2, lo)
                    if k & 4:
                        hi = plus(hi4, hi)
                        lo = plus(lo4, lo)
                    else:
                        hi4 = hi
                        lo4 = lo
                else:
                    hi2 = hi
                    lo2 = lo
            else:
                hi1 = hi
                lo1 = lo
            k = k + 1
        return pair(hi, lo, 0)

    return unit


def _row_square(S: Any, row_square: Any) -> Any:
    """`row_square` for one more type: Warp takes a function as an overload of a local one of its name."""
    unit = _unit(dot_term, wp.float64, S)

    @wp.func  # type: ignore[no-redef]
    def row_square(x: A2(S), i: int):
        """||x[i]||^2: the scalars of a row are added as a segment's are."""
        k = x.shape[1]
        size = super_size(k)
        v = unit(x, x, x, x, i, 0, wp.min(size, k), 1, k, 1, 0, 0)
        for q in range(1, ceil_div(k, size)):
            v = add_super(v, unit(x, x, x, x, i, q * size, super_end(q, size, k), 1, k, 1, 0, 0))
        return total(v[0], v[1])

    return row_square


row_square: Any = None
for _scalar in KEPT:
    row_square = _row_square(_scalar, row_square)


def _serial(term: Any, V: Any, S: Any, I: Any) -> Any:  # noqa: E741
    unit = _unit(term, V, S)
    store, store_empty = _store(S, V is wp.vec2d)

    def reduce(
        x: A2(S), y: A2(S), u: A2(S), w: A2(S), idx: wp.array(dtype=I), n: int, m: int, span: int, per: int,
        rows: int, flat: int, near: int, j: int, gaps: int, mode: int,
        out: A2(S), aux: A2(S), inv: A2(KEPT[S]), wide: A2(wp.float64), counts: L, part: A2(wp.vec2d),
    ):  # fmt: skip
        r, c = wp.tid()
        i = r * span
        e = wp.min(i + span, n)
        while i < e:
            s = idx[i]
            end = run_end(idx, i, n)
            start = i
            if i > 0 and idx[i - 1] == s:
                start = run_start(idx, i)
            elif gaps == 1:
                before = I(-1)
                if i > 0:
                    before = idx[i - 1]
                for e0 in range(clamped(before, m) + 1, wp.min(clamped(s, m), m)):
                    store_empty(mode, e0, c, out, aux, inv, wide, counts)
            if s >= I(0) and s < I(m):
                items = (end - start) * per
                size = super_size(items)
                limit = wp.min((e - start) * per, items)
                for q in range(ceil_div((i - start) * per, size), ceil_div(limit, size)):
                    k = q * size
                    v = unit(x, y, u, w, start, k, super_end(q, size, items), rows, flat, near, c, j)
                    if items <= size:
                        store(mode, int(s), c, v, end - start, out, aux, inv, wide, counts)
                    else:
                        part[(start * per + k) // SUPER * 2 + wp.min(q, 1), c] = v
            if end == n and gaps == 1:
                for e1 in range(clamped(s, m) + 1, m):
                    store_empty(mode, e1, c, out, aux, inv, wide, counts)
            i = end

    return reduce


def _cooperative(term: Any, V: Any, columns: int, S: Any, I: Any) -> Any:  # noqa: E741
    store, store_empty = _store(S, V is wp.vec2d)
    at, lane, accumulate = _functions(term, V, columns, S)
    missing = MISSING[V]
    threads = THREADS
    teams = THREADS // 8
    # Room for the teams' runs, then for a run and a gap of each position, a last gap and a super from before.
    room = 3 * THREADS + 2

    @wp.func
    def tree(v0: V, v1: V, v2: V, v3: V, v4: V, v5: V, v6: V, v7: V, near: int):
        if near == 1:
            return plus(plus(plus(v0, v1), plus(v2, v3)), plus(plus(v4, v5), plus(v6, v7)))
        return plus(plus(plus(v0, v4), plus(v2, v6)), plus(plus(v1, v5), plus(v3, v7)))

    @wp.func
    def row(x: A, y: A, u: A, w: A, start: int, items: int, rows: int, flat: int, c: int, j: int, near: int):
        """All of a segment that is no longer than a row."""
        v0 = at(x, y, u, w, start, 0, items, rows, flat, c, j)
        v1 = at(x, y, u, w, start, 1, items, rows, flat, c, j)
        v2 = at(x, y, u, w, start, 2, items, rows, flat, c, j)
        v3 = at(x, y, u, w, start, 3, items, rows, flat, c, j)
        v4 = at(x, y, u, w, start, 4, items, rows, flat, c, j)
        v5 = at(x, y, u, w, start, 5, items, rows, flat, c, j)
        v6 = at(x, y, u, w, start, 6, items, rows, flat, c, j)
        v7 = at(x, y, u, w, start, 7, items, rows, flat, c, j)
        return tree(v0, v1, v2, v3, v4, v5, v6, v7, near)

    @wp.func
    def empty(s: int, c: int, mode: int, out: A, aux: A, inv: A, wide: A, counts: L):
        for d in range(columns):
            store_empty(mode, s, c + d, out, aux, inv, wide, counts)

    def reduce(
        x: A2(S), y: A2(S), u: A2(S), w: A2(S), idx: wp.array(dtype=I), n: int, m: int, span: int, per: int,
        rows: int, flat: int, near: int, j: int, gaps: int, mode: int,
        out: A2(S), aux: A2(S), inv: A2(KEPT[S]), wide: A2(wp.float64), counts: L, part: A2(wp.vec2d),
    ):  # fmt: skip
        group, block, t = wp.tid()
        c = group * columns
        first = block * threads
        i = first + t

        # What begins at this position: a run, empty segments before it or after the last.
        s = I(-1)
        start = i
        end = int(0)  # of a run to be summed
        number = int(0)  # of its super
        low = int(0)
        high = int(0)
        tail = m
        if i < n:
            s = idx[i]
            before = I(-1)
            if i > 0:
                before = idx[i - 1]
            valid = s >= I(0) and s < I(m)
            if i == 0 or before != s:
                low = clamped(before, m) + 1
                high = clamped(s, m)
                if valid:
                    end = run_end(idx, i, n)
            elif t == 0 and valid:
                # A run from before. A super of it can start here only if it is a super long already.
                stop = wp.min(first + threads, n)
                reach = stop - 1 - SUPER // per
                if reach >= 0 and idx[wp.min(reach, i)] == s:
                    begin = run_start(idx, i)
                    after = run_end(idx, i, n)
                    size = super_size((after - begin) * per)
                    number = ceil_div((i - begin) * per, size)
                    if number < ceil_div((wp.min(after, stop) - begin) * per, size):
                        start = begin
                        end = after
            if i == n - 1:
                tail = wp.min(clamped(s, m) + 1, m)
        items = (end - start) * per
        if gaps == 0:
            high = low
            tail = m
        if high - low <= SMALL_GAP:
            for d in range(low, high):
                empty(d, c, mode, out, aux, inv, wide, counts)
            high = low

        # The rest is queued: runs for teams from slot 0 on, work for the whole thread block from slot `threads` on.
        for_team = items > ALONE and items <= TOGETHER
        for_block = items > TOGETHER
        mine = wp.where(for_team, 1, 0) + 4096 * (
            wp.where(for_block, 1, 0) + wp.where(low < high, 1, 0) + wp.where(tail < m, 1, 0)
        )
        scan = wp.tile_scan_inclusive(wp.tile(mine))
        before_me = scan[t] - mine
        everyone = scan[threads - 1]
        for_teams = everyone % 4096
        queue = wp.tile_empty(shape=room, dtype=wp.vec3i, storage="shared")
        if everyone > 0:
            slot = threads + before_me // 4096
            wp.tile_scatter_masked(
                queue, wp.where(for_team, before_me % 4096, slot), wp.vec3i(start, end, number), for_team or for_block
            )
            slot = slot + wp.where(for_block, 1, 0)
            wp.tile_scatter_masked(queue, slot, wp.vec3i(-1 - low, high, 0), low < high)
            slot = slot + wp.where(low < high, 1, 0)
            wp.tile_scatter_masked(queue, slot, wp.vec3i(-1 - tail, m, 0), tail < m)

        # Turns: first each thread's own run of one row, then runs by teams, then one piece of work for all at a time.
        team_turns = (for_teams + teams - 1) // teams
        here = t % TEAM
        for turn in range(1 + team_turns + everyone // 4096):
            run = wp.vec3i(i, i, 0)
            hi = missing()
            lo = missing()
            writes = items > 0 and items <= ALONE
            size = SUPER
            todo = items
            if turn == 0:
                if writes:
                    run = wp.vec3i(start, end, 0)
                    hi = row(x, y, u, w, start, items, rows, flat, c, j, near)
            else:
                alike = turn > team_turns  # all threads are at the same run
                e = threads + turn - 1 - team_turns
                f = t // TEAM * BLOCK + here
                base = int(0)
                step = teams * BLOCK
                if not alike:
                    e = (turn - 1) * teams + t // TEAM
                    f = here
                    step = BLOCK
                if alike or e < for_teams:
                    run = queue[e]
                if run[0] < 0:
                    for d in range(t - 1 - run[0], run[1], threads):
                        empty(d, c, mode, out, aux, inv, wide, counts)
                    run = wp.vec3i(i, i, 0)
                todo = (run[1] - run[0]) * per
                size = super_size(todo)
                base = run[2] * size
                stop = super_end(run[2], size, todo)
                while base < stop:
                    v = lane(x, y, u, w, run[0], base + f, stop, rows, flat, c, j)
                    if alike:
                        blocks = wp.tile(v, preserve_type=True)
                        if t < TEAM:
                            for k in range(wp.min(teams, (stop - base + BLOCK - 1) // BLOCK)):
                                hi, lo = accumulate(hi, lo, blocks[k * TEAM + t])
                    else:
                        hi, lo = accumulate(hi, lo, v)
                    base = base + step
                highs = wp.tile(hi, preserve_type=True)
                lows = wp.tile(lo, preserve_type=True)
                writes = here == 0 and todo > 0 and (t == 0 or not alike)
                if writes:
                    hi = tree(
                        highs[t], highs[t + 1], highs[t + 2], highs[t + 3],
                        highs[t + 4], highs[t + 5], highs[t + 6], highs[t + 7], near,
                    )  # fmt: skip
                    lo = tree(
                        lows[t], lows[t + 1], lows[t + 2], lows[t + 3],
                        lows[t + 4], lows[t + 5], lows[t + 6], lows[t + 7], near,
                    )  # fmt: skip
            if writes:
                for d in range(columns):
                    v2 = pair(hi, lo, d)
                    if todo <= size:
                        store(mode, int(idx[run[0]]), c + d, v2, run[1] - run[0], out, aux, inv, wide, counts)
                    else:
                        part[(run[0] * per + run[2] * size) // SUPER * 2 + wp.min(run[2], 1), c + d] = v2

    return reduce


def _combine(V: Any, S: Any, I: Any) -> Any:  # noqa: E741
    store, _store_empty = _store(S, V is wp.vec2d)
    join = better if V is wp.vec2d else add_super

    def combine(
        idx: wp.array(dtype=I), n: int, m: int, per: int, mode: int,
        out: A2(S), aux: A2(S), inv: A2(KEPT[S]), wide: A2(wp.float64), counts: L, part: A2(wp.vec2d),
    ):  # fmt: skip
        """Adds the supers of the one long segment that starts in each range of 4096 items, if there is one."""
        r, c = wp.tid()
        first = ceil_div(r * SUPER, per)
        last = wp.min(ceil_div(r * SUPER + SUPER, per), n) - 1
        if last >= first:
            s = idx[last]
            start = run_start(idx, last)
            if start >= first and s >= I(0) and s < I(m):
                end = run_end(idx, last, n)
                items = (end - start) * per
                size = super_size(items)
                if items > size:
                    v = part[start * per // SUPER * 2, c]
                    for q in range(1, ceil_div(items, size)):
                        v = join(v, part[(start * per + q * size) // SUPER * 2 + 1, c])
                    store(mode, int(s), c, v, end - start, out, aux, inv, wide, counts)

    return combine


@family(name for name, (_, _, columns) in TERMS.items() if columns == 1 or name == "inner_products")
def serial(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    """The serial kernel of a term."""
    term, V, columns = TERMS[name]
    return {"reduce": _serial(term, V if columns == 1 else wp.float64, S, I)}


@family(name for name in TERMS if name != "outer")
def cooperative(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    """The cooperative kernel of a term: for CUDA (and fibers)."""
    term, V, columns = TERMS[name]
    return {"reduce": _cooperative(term, V, columns, S, I)}


@family(["sum", "max"])
def combine(name: str, S: Any, I: Any) -> dict[str, Any]:  # noqa: E741
    """What adds the supers of long segments: the same for all sums."""
    return {"combine": _combine(wp.vec2d if name == "max" else wp.float64, S, I)}
