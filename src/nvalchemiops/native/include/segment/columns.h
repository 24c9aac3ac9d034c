// Reductions of any width: eight columns at a time, each by the W = 3 rule.
//
// With a vector of eight columns an item is one load, and lane e of a row is item e: no shuffles, at the price of
// eight accumulators. A term hands out groups of eight columns. The last group of a wide row overlaps the one
// before it; a row narrower than eight reads on into the next row, except in the last rows of the data. At most
// GROUPS groups go through the data together, which bounds the partial sums of runs that cross threads.
#pragma once
#include "output.h"
#include "reduce.h"

namespace seg { namespace {
#pragma clang fp contract(off)

constexpr int GROUPS = 4;

// Column c .. c + 7 of row i of x (n, k).
template <class T, bool SAFE> SEG_INLINE d8 columns8(const T* x, i64 i, i64 k, i64 c) {
  const T* p = x + i * k + c;
  if constexpr (SAFE) return wide(load8(p));
  else return load_first(p, k - c);
}
SEG_INLINE i64 groups_of(i64 k) { return (k + 7) / 8; }
SEG_INLINE i64 group_start(i64 k, i64 g) { return max(0, min(8 * g, k - 8)); }

template <class T> struct ColumnSum {         // x (n, k)
  typedef T scalar;
  const T* x;
  i64 k;
  i64 groups() const { return groups_of(k); }
  i64 first(i64 g) const { return group_start(k, g); }     // the group's first column of the output
  i64 count() const { return min(8, k); }                  // and how many it has
  bool safe(i64 g, i64 end, i64 n) const { return (end - 1) * k + first(g) + 8 <= n * k; }
  template <bool SAFE> d8 at(i64 i, i64 g) const { return columns8<T, SAFE>(x, i, k, first(g)); }
};
template <class T> struct Outer {             // u (n, k), w (n, j): columns (k, j)
  typedef T scalar;
  const T *u, *w;
  i64 k, j;
  i64 groups() const { return k * groups_of(j); }
  i64 first(i64 g) const { return g / groups_of(j) * j + group_start(j, g % groups_of(j)); }
  i64 count() const { return min(8, j); }
  bool safe(i64 g, i64 end, i64 n) const { return (end - 1) * j + group_start(j, g % groups_of(j)) + 8 <= n * j; }
  template <bool SAFE> d8 at(i64 i, i64 g) const {
    const i64 r = g / groups_of(j), c = group_start(j, g % groups_of(j));
    return (double)u[i * k + r] * columns8<T, SAFE>(w, i, j, c);
  }
};

// Lane e of a block: items e, e + 8, ... below n, as the block's tree.
template <bool SAFE, class Term> SEG_INLINE d8 lane(const Term& t, i64 p, i64 g, i64 n) {
  switch ((n + 7) / 8) {
#define SEG_ROW(r) t.template at<SAFE>(p + 8 * r, g)
    case 0: return d8{};
    case 1: return SEG_ROW(0);
    case 2: return SEG_ROW(0) + SEG_ROW(1);
    case 3: return SEG_ROW(0) + SEG_ROW(1) + SEG_ROW(2);
    case 4: return (SEG_ROW(0) + SEG_ROW(1)) + (SEG_ROW(2) + SEG_ROW(3));
    case 5: return ((SEG_ROW(0) + SEG_ROW(1)) + (SEG_ROW(2) + SEG_ROW(3))) + SEG_ROW(4);
    case 6: return ((SEG_ROW(0) + SEG_ROW(1)) + (SEG_ROW(2) + SEG_ROW(3))) + (SEG_ROW(4) + SEG_ROW(5));
    case 7:
      return ((SEG_ROW(0) + SEG_ROW(1)) + (SEG_ROW(2) + SEG_ROW(3))) +
             ((SEG_ROW(4) + SEG_ROW(5)) + SEG_ROW(6));
    default:
      return ((SEG_ROW(0) + SEG_ROW(1)) + (SEG_ROW(2) + SEG_ROW(3))) +
             ((SEG_ROW(4) + SEG_ROW(5)) + (SEG_ROW(6) + SEG_ROW(7)));
#undef SEG_ROW
  }
}
// The eight lanes of a block of n items.
template <bool SAFE, class Term> SEG_NOINLINE void block(const Term& t, i64 p, i64 g, i64 n, d8* v) {
  if (n >= BLOCK) {
    for (int e = 0; e < 8; e++) v[e] = lane<SAFE>(t, p + e, g, BLOCK);
  } else {
    for (int e = 0; e < 8; e++) v[e] = lane<SAFE>(t, p + e, g, n - e < 0 ? 0 : n - e);
  }
}
SEG_INLINE d8 fold(const d8* v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// At most one row: the lanes that are missing are left out of the tree.
template <bool SAFE, class Term> SEG_INLINE d8 row(const Term& t, i64 p, i64 g, i64 n) {
#define SEG_ITEM(e) t.template at<SAFE>(p + e, g)
  switch (n) {
    case 1: return SEG_ITEM(0);
    case 2: return SEG_ITEM(0) + SEG_ITEM(1);
    case 3: return (SEG_ITEM(0) + SEG_ITEM(2)) + SEG_ITEM(1);
    case 4: return (SEG_ITEM(0) + SEG_ITEM(2)) + (SEG_ITEM(1) + SEG_ITEM(3));
    case 5: return ((SEG_ITEM(0) + SEG_ITEM(4)) + SEG_ITEM(2)) + (SEG_ITEM(1) + SEG_ITEM(3));
    case 6: return ((SEG_ITEM(0) + SEG_ITEM(4)) + SEG_ITEM(2)) + ((SEG_ITEM(1) + SEG_ITEM(5)) + SEG_ITEM(3));
    case 7:
      return ((SEG_ITEM(0) + SEG_ITEM(4)) + (SEG_ITEM(2) + SEG_ITEM(6))) +
             ((SEG_ITEM(1) + SEG_ITEM(5)) + SEG_ITEM(3));
    default:
      return ((SEG_ITEM(0) + SEG_ITEM(4)) + (SEG_ITEM(2) + SEG_ITEM(6))) +
             ((SEG_ITEM(1) + SEG_ITEM(5)) + (SEG_ITEM(3) + SEG_ITEM(7)));
  }
#undef SEG_ITEM
}
// A segment of at most one block.
template <bool SAFE, class Term> SEG_NOINLINE d8 short_sum(const Term& t, i64 p, i64 g, i64 n) {
  if (n <= 8) return row<SAFE>(t, p, g, n) + 0.0;
  d8 v[8];
  block<SAFE>(t, p, g, n, v);
  return fold(v) + 0.0;
}

template <class Term, class T> struct Columns : Reduction {
  Term t;
  Out<T> out;
  i64 g0, g1;                                 // the groups of this pass
  static const Columns& of(const Reduction* r) { return *(const Columns*)r; }

  // Lanes of one super for each group; n is at most its size.
  SEG_NOINLINE void super_groups(i64 p, i64 n, Pair<d8>* to) const {
    d8 hi[GROUPS][8], lo[GROUPS][8], v[8];
    for (i64 i = 0; i < n; i += BLOCK) {
      for (i64 g = g0; g < g1; g++) {
        d8 *h = hi[g - g0], *l = lo[g - g0];
        if (t.safe(g, p + min(i + BLOCK, n), this->n)) block<true>(t, p + i, g, n - i, v);
        else block<false>(t, p + i, g, n - i, v);
        for (int e = 0; e < 8; e++) {
          if (i) { accumulate<T>(h[e], l[e], v[e]); }
          else { h[e] = v[e]; l[e] = d8{}; }
        }
      }
    }
    for (i64 g = g0; g < g1; g++) to[g - g0] = {fold(hi[g - g0]), fold(lo[g - g0])};
  }
  // Parts are by super, then by group.
  void put_all(const Pair<d8>* parts, i64 count, i64 n, i64 s) const {
    for (i64 g = g0; g < g1; g++) {
      Pair<d8> a = parts[g - g0];
      for (i64 k = 1; k < count; k++) add(a, parts[k * (g1 - g0) + g - g0]);
      put(out, s, t.first(g), t.count(), total(a.hi, a.lo), n);
    }
  }
  void sum_run(i64 p, i64 n, i64 s) const {
    if (n > BLOCK) {
      Pair<d8> parts[GROUPS * (CHUNK / SUPER)];   // a listed run is shorter than a chunk
      supers(*this, p, n, p, p + n, (char*)parts);
      put_all(parts, super_count(n), n, s);
      return;
    }
    for (i64 g = g0; g < g1; g++) {
      const d8 v = t.safe(g, p + n, this->n) ? short_sum<true>(t, p, g, n) : short_sum<false>(t, p, g, n);
      put(out, s, t.first(g), t.count(), v, n);
    }
  }

  Columns(Index idx, i64 n, Term term, const Out<T>& to) {
    this->idx = idx;
    this->n = n;
    m = to.m;
    items = 1;
    hooks[0] = hooks[1] = nullptr;
    t = term;
    out = to;
    list = [](const Reduction* r, Runs& runs, int k, i64) {
      for (int i = 0; i < k; i++)
        of(r).sum_run(runs.base + runs.start[i], runs.size[i], (i64)((u64)runs.origin + (u64)(i64)runs.seg[i]));
    };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part) {
      of(r).super_groups(first, count, (Pair<d8>*)part);
    };
    join = [](const Reduction* r, const void* parts, i64 n, i64 s) {
      of(r).put_all((const Pair<d8>*)parts, super_count(n), n, s);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) {   // by the first pass, for the whole width; nothing of it is set yet
      if (of(r).g0 == 0) seg::zeros(of(r).out, a, b);
    };
  }
};
template <class Term, class T> void reduce(Columns<Term, T> r, int threads) {
  for (r.g0 = 0; r.g0 < r.t.groups(); r.g0 = r.g1) {
    r.g1 = min(r.g0 + GROUPS, r.t.groups());
    r.part_bytes = (r.g1 - r.g0) * (i64)sizeof(Pair<d8>);
    reduce((const Reduction&)r, threads);
    r.hooks[0] = r.hooks[1] = nullptr;        // once is enough
  }
}
}}  // namespace seg
