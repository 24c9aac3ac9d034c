// The largest or smallest of each column, and where it is.
//
// The first NaN wins, else the extreme, the first of equals. Supers are joined in order, so the verdict is that of one
// pass from left to right. Values are only compared: what is written is the element itself, with all its bits.
#pragma once
#include "norm_max.h"

namespace seg { namespace {
#pragma clang fp contract(off)

// Whether b, which comes later, is chosen over a; by lanes.
SEG_INLINE l8 chosen(d8 a, d8 b) { return (b > a) | ((b != b) & (a == a)); }

template <class T> struct Extreme : Reduction {
  static constexpr i64 COLUMNS = 64;          // of one pass: what `super` writes is bounded
  struct Best8 { d8 value; l8 at; };
  struct Best { double value; i64 at; };
  const T* x;
  i64 k, first, count;                        // columns first .. first + count - 1 of k
  T* out;
  Positions* at;
  bool narrow;
  double sign;                                // 1: largest, -1: smallest
  static const Extreme& of(const Reduction* r) { return *(const Extreme*)r; }

  // One column: lane e looks at elements e, e + 8, ... from p on; the verdicts are joined by position.
  Best one(i64 p, i64 n) const {
    Best8 best = {d8{} - __builtin_inf(), l8{} + p};
    const l8 iota = {0, 1, 2, 3, 4, 5, 6, 7};
    for (i64 i = 0; i < n; i += 8) {
      const bool whole = i + 8 <= n;
      const d8 v = (whole ? wide(load8(x + p + i)) : load_first(x + p + i, n - i)) * sign;
      const l8 take = chosen(best.value, v) & (iota < n - i);
      best.value = take ? v : best.value;
      best.at = take ? iota + (p + i) : best.at;
    }
    Best found = {best.value[0], best.at[0]};
    for (int e = 1; e < 8; e++) {
      const Best b = {best.value[e], best.at[e]};
      const bool tie = b.value == found.value || (b.value != b.value && found.value != found.value);
      if (tie ? b.at < found.at : beats(b.value, found.value)) found = b;
    }
    return found;
  }
  // Of n elements from p on, for each column: better than to[c], if that is there.
  void scan(i64 p, i64 n, Best* to, bool begun = false) const {
    for (i64 g = 0; g < count; g += 8) {
      const i64 c = first + g, w = min(8, count - g);
      const auto row = [&](i64 i) {
        const T* const v = x + i * k + c;
        return (w == 8 ? wide(load8(v)) : load_first(v, w)) * sign;
      };
      Best found[8];
      if (k == 1) {
        found[0] = one(p, n);
      } else {
        Best8 best = {row(p), l8{} + p};
        for (i64 i = p + 1; i < p + n; i++) {
          const d8 v = row(i);
          const l8 take = chosen(best.value, v);
          best.value = take ? v : best.value;
          best.at = take ? l8{} + i : best.at;
        }
        for (i64 e = 0; e < w; e++) found[e] = {best.value[e], best.at[e]};
      }
      for (i64 e = 0; e < w; e++)
        if (!begun || beats(found[e].value, to[g + e].value)) to[g + e] = found[e];
    }
  }
  void set(i64 s, const Best* best) const {
    if ((u64)s >= (u64)m) return;
    for (i64 g = 0; g < count; g++) {
      const i64 to = s * k + first + g;
      out[to] = (T)(best[g].value * sign);    // as it was: a float64 holds every value of T
      if (narrow) ((i32*)at)[to] = (i32)best[g].at;
      else ((i64*)at)[to] = best[g].at;
    }
  }
  void list_of(const Runs& runs, int runs_count) const {
    Best best[COLUMNS];
    for (int c = 0; c < runs_count; c++) {
      scan(runs.base + runs.start[c], runs.size[c], best);
      set((i64)((u64)runs.origin + (u64)(i64)runs.seg[c]), best);
    }
  }
  void none(i64 a, i64 b) const {             // segments a .. b - 1 are empty
    if (first) return;                        // by the first pass
    clear(out, a, b, k);
    const u64 row = (u64)k * (narrow ? 4 : 8);
    __builtin_memset((char*)at + (u64)a * row, 255, (u64)(b - a) * row);   // -1
  }

  Extreme(const Call& call, const T* x, T* out, Positions* at, i64 n, i64 m, i64 k, double sign)
      : x(x), k(k), out(out), at(at), narrow(call.narrow_at), sign(sign) {
    idx = call.idx;
    this->n = n;
    this->m = m;
    items = 1;
    hooks[0] = hooks[1] = nullptr;
    list = [](const Reduction* r, Runs& runs, int count, i64, char*) { of(r).list_of(runs, count); };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char*) {
      of(r).scan(first, count, (Best*)part);
    };
    join = [](const Reduction* r, const void* parts, i64 n, i64 s) {
      const Extreme& e = of(r);
      Best best[COLUMNS];
      const Best* p = (const Best*)parts;
      for (i64 c = 0; c < super_count(n); c++, p += e.count)
        for (i64 g = 0; g < e.count; g++)
          if (c == 0 || beats(p[g].value, best[g].value)) best[g] = p[g];
      e.set(s, best);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) { of(r).none(a, b); };
    if (call.strided) by_copies();
  }
  Extreme copied(i64 i, i64 rows, char* work) const {
    Extreme c = *this;
    Copies copies = {work};
    copies.rows(c.x, i, rows, 0, k);
    return c;
  }
  void by_copies() {
    most_listed = min(CHUNK, max(1, PIECE / max(1, k)));
    work_bytes = max(PIECE, k) * (i64)sizeof(T);
    list = [](const Reduction* r, Runs& runs, int count, i64, char* work) {
      of(r).copied(runs.base, (i64)runs.start[count - 1] + runs.size[count - 1], work).list_of(runs, count);
    };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char* work) {
      const i64 rows = max(1, PIECE / max(1, of(r).k));
      for (i64 i = 0; i < count; i += rows) {
        const i64 n = min(rows, count - i);
        of(r).copied(first + i, n, work).scan(first + i, n, (Best*)part, i > 0);
      }
    };
  }
};
template <class T> i64 reduce(Extreme<T> r, int threads) {
  for (r.first = 0; r.first < r.k; r.first += Extreme<T>::COLUMNS) {
    r.count = min(Extreme<T>::COLUMNS, r.k - r.first);
    r.part_bytes = r.count * (i64)sizeof(typename Extreme<T>::Best);
    if (reduce((const Reduction&)r, threads) != -1) return NO_MEMORY;
  }
  return -1;
}
}}  // namespace seg
