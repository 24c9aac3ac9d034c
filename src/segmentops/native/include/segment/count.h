// Reductions without data: how many elements a segment has is all they know.
#pragma once
#include "output.h"

namespace seg { namespace {

struct Counts {
  i32* counts;
  void one(i64 s, i64 elements) const { counts[s] = (i32)elements; }
  void list(const Runs& r, int k, i64 m) const {
    for (int i = 0; i < k; i++) {
      const u64 s = (u64)r.origin + (u64)(i64)r.seg[i];
      if (s < (u64)m) one((i64)s, r.size[i]);
    }
  }
  void none(i64 a, i64 b) const { clear(counts, a, b, 1); }
};
// y (m, k) over the number of elements; of a segment without any, something.
template <class T> struct Shares {
  const T* y;
  T* out;
  i64 k;
  void one(i64 s, i64 elements) const {
    const d8 n = d8{} + (double)elements;
    for (i64 c = 0; c < k; c += 8) {
      const i64 at = s * k + c;
      const d8 v = k - c >= 8 ? wide(load8(y + at)) : load_first(y + at, k - c);
      store8(out + at, v / n, k - c);
    }
  }
  void list(const Runs& r, int count, i64 m) const {
    if (k == 3) triples(r, count, m);
    else if (k != 1 || !scalars(r, count, m))
      for (int i = 0; i < count; i++) {
        const u64 s = (u64)r.origin + (u64)(i64)r.seg[i];
        if (s < (u64)m) one((i64)s, r.size[i]);
      }
  }
  // By segment: the lengths are spread out first, so that everything else is whole vectors.
  bool scalars(const Runs& r, int count, i64 m) const {
    const i32 low = r.seg[0];
    const i64 first = (i64)((u64)r.origin + (u64)(i64)low), span = (i64)r.seg[count - 1] - low + 1;
    if (first < 0 || span < 1 || span > 2 * RUNS || first > m - span) return false;
    SEG_ALIGNED i32 sizes[2 * RUNS + 8];
    __builtin_memset(sizes, 0, (u64)((span + 7) / 8 * 8) * sizeof(i32));
    for (int i = 0; i < count; i++)
      if (const u32 s = (u32)r.seg[i] - (u32)low; s < (u64)span) sizes[s] = r.size[i];
    for (i64 s = 0; s < span; s += 8) {
      const i8 n = load8(sizes + s);
      const bool all = s + 8 <= span;
      const d8 v = all ? wide(load8(y + first + s)) : load_first(y + first + s, span - s);
      store8(out + first + s, v / wide(n - (n == 0)), span - s);
    }
    return true;
  }
  void triples(const Runs& r, int count, i64 m) const {
    for (int i = 0; i < count; i++) {
      const u64 s = (u64)r.origin + (u64)(i64)r.seg[i];
      if (s >= (u64)m) continue;
      const T* const p = y + 3 * s;
      SEG_ALIGNED T q[4];
      store4(q, d4{(double)p[0], (double)p[1], (double)p[2]} / (double)r.size[i]);
      __builtin_memcpy(out + 3 * s, q, 3 * sizeof(T));
    }
  }
  void none(i64, i64) const {}                // nobody reads those
};
template <class F> struct Lengths : Reduction {
  F f;                                        // segments inside [0, m) only
  Lengths(Index idx, i64 n, i64 m, const F& f) : f(f) {
    this->idx = idx;
    this->n = n;
    this->m = m;
    items = 1;
    part_bytes = 1;
    hooks[0] = hooks[1] = nullptr;
    list = [](const Reduction* r, Runs& runs, int k, i64, char*) { ((const Lengths*)r)->f.list(runs, k, r->m); };
    super = [](const Reduction*, i64, i64, void*, char*) {};
    join = [](const Reduction* r, const void*, i64 n, i64 s) {
      if ((u64)s < (u64)r->m) ((const Lengths*)r)->f.one(s, n);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) { ((const Lengths*)r)->f.none(a, b); };
  }
};
}}  // namespace seg
