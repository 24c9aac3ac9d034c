// The largest norm of a segment, and where it is.
//
// Squared norms are compared in float64; the squares in a row are added as if they were a segment. The first NaN wins,
// else the largest, the first of equals. Maxima of supers are joined in order, so the verdict is that of one pass from
// left to right.
// The derivatives live at the argmax alone: x / ||x|| there, 0 everywhere else and where the norm is 0.
#pragma once
#include "tiers.h"

namespace seg { namespace {
#pragma clang fp contract(off)

struct Largest { double square; i64 at; };
// Of numbers; Clang's own maxima have an answer for NaN, which takes three times as many instructions.
SEG_INLINE d8 larger(d8 a, d8 b) { return a > b ? a : b; }
SEG_INLINE double largest(d8 v) {
  v = larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = larger(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  return larger(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6))[0];
}
SEG_INLINE bool beats(double a, double b) { return a > b || (a != a && b == b); }

// term(0) + ... + term(k - 1), the scalars of one row.
template <class F> SEG_INLINE double row_sum(i64 k, const F& term) {
  double hi = 0, lo = 0;
  for (i64 q = 0; q < k; q++) {
    if (k > 3) two_sum(hi, lo, term(q));
    else hi += term(q);
  }
  return (hi + (lo == lo ? lo : 0)) + 0.0;    // see `total`
}
template <class T> SEG_INLINE double square_norm(const T* x, i64 k) {
  if (k > 3) return segment<1>(Products<T, 1>{x, x}, 0, k, k)[0];
  return row_sum(k, [=](i64 q) { return (double)x[q] * (double)x[q]; });   // the same bits
}
// Squared norms of the n elements from i on, at most so many as a list has runs; q has room for n rounded up to eight.
template <class T> void square_norms(const T* x, i64 k, i64 i, i64 n, double* q) {
  if (k > 1 && k != 3 && k < (1 << 30) / RUNS) {
    Runs rows;
    rows.base = rows.origin = 0;
    for (i64 e = 0; e < n; e++) {
      rows.start[e] = (u32)(e * k);
      rows.size[e] = (i32)k;
      rows.seg[e] = (i32)e;
    }
    short_runs<1>(Products<T, 1>{x + i * k, x + i * k}, rows, (int)n, sums(q, n, 1), 0, n * k);
    return;
  }
  i64 e = 0;
  if (k == 1) {
    for (; e + 8 <= n; e += 8) {
      const d8 v = wide(load8(x + i + e));
      store(q + e, v * v);
    }
  } else if (k == 3) {
    for (; e + 8 <= n; e += 8) {
      const T* const p = x + 3 * (i + e);
      d8 a = wide(load8(p)), b = wide(load8(p + 8)), c = wide(load8(p + 16));
      a *= a;
      b *= b;
      c *= c;
      const d8 s0 = __builtin_shufflevector(
          __builtin_shufflevector(a, b, 0, 3, 6, 9, 12, 15, 0, 0), c, 0, 1, 2, 3, 4, 5, 10, 13);
      const d8 s1 = __builtin_shufflevector(
          __builtin_shufflevector(a, b, 1, 4, 7, 10, 13, 1, 1, 1), c, 0, 1, 2, 3, 4, 8, 11, 14);
      const d8 s2 = __builtin_shufflevector(
          __builtin_shufflevector(a, b, 2, 5, 8, 11, 14, 2, 2, 2), c, 0, 1, 2, 3, 4, 9, 12, 15);
      store(q + e, (s0 + s1) + s2);
    }
  }
  for (; e < n; e++) q[e] = square_norm(x + (i + e) * k, k);
}

template <class T> struct NormMax : Reduction {
  const T* x;
  i64 k;
  T* out;
  Positions* at;
  bool narrow;
  static const NormMax& of(const Reduction* r) { return *(const NormMax*)r; }

  // The squares q of the elements from i on against the best so far; eight more may be read.
  static SEG_INLINE void compare(Largest& best, const double* q, i64 i, i64 n) {
    for (i64 e = 0; e < n; e += 8) {
      const l8 exists = __builtin_convertvector(iota8(0) < (i32)(n - e), l8);
      const d8 v = exists ? load<d8>(q + e) : d8{} - 1.0;
      const u8 nan = bitmask8(v != v);
      if (e + 8 <= n && !nan && !bitmask8(v > best.square)) continue;   // as a rule, in a long run
      const double most = nan ? q[e + __builtin_ctz(nan)] : largest(v);
      if (beats(most, best.square)) best = {most, i + e + __builtin_ctz(nan ? nan : bitmask8(v == most))};
    }
  }
  Largest scan(i64 p, i64 n) const {
    SEG_ALIGNED double q[256 + 8];
    Largest best = {-1, p};
    for (i64 i = p; i < p + n; i += 256) {
      const i64 count = min(256, p + n - i);
      square_norms(x, k, i, count, q);
      compare(best, q, i, count);
    }
    return best;
  }
  // The same for at most 8 V squares, without a branch for their number; so many may be read.
  template <int V> static SEG_INLINE Largest few(const double* q, i64 i, i64 n) {
    d8 v[V], most = d8{} - 1.0;
    u32 nan = 0, found = 0;
    for (int j = 0; j < V; j++) {
      v[j] = __builtin_convertvector(iota8(8 * j) < (i32)n, l8) ? load<d8>(q + 8 * j) : d8{} - 1.0;
      nan |= (u32)bitmask8(v[j] != v[j]) << 8 * j;
      most = larger(most, v[j]);
    }
    if (nan) return {q[__builtin_ctz(nan)], i + __builtin_ctz(nan)};
    const double first = largest(most);
    for (int j = 0; j < V; j++) found |= (u32)bitmask8(v[j] == first) << 8 * j;
    return {first, i + __builtin_ctz(found)};
  }
  void put_at(i64 s, i64 i) const {
    if ((u64)s >= (u64)m) return;
    if (narrow) ((i32*)at)[s] = (i32)i;
    else ((i64*)at)[s] = i;
  }
  void set(i64 s, const Largest& best) const {
    if ((u64)s < (u64)m) out[s] = (T)__builtin_elementwise_sqrt(best.square);
    put_at(s, best.at);
  }
  void list_of(const Runs& r, int count, i64 mine) const {   // squares of many runs at once, roots of eight
    SEG_ALIGNED double q[512 + 16];
    i64 from = 0, to = 0;
    i32 longest = 0;
    for (int c = 0; c < count; c++) longest = r.size[c] > longest ? r.size[c] : longest;
    for (int g = 0; g < count; g += 8) {
      const int runs = (int)min(8, count - g);
      SEG_ALIGNED double square[8] = {};
      for (int c = g; c < g + runs; c++) {
        const i64 p = r.start[c], n = r.size[c];
        Largest best = {-1, 0};
        if (n <= 256 && p + n > to) {
          from = p;
          to = min(p + 512, r.start[count]);
          square_norms(x, k, r.base + from, to - from, q);
        }
        if (n > 256) best = scan(r.base + p, n);
        else if (longest <= 8) best = few<1>(q + (p - from), r.base + p, n);
        else if (n <= 16) best = few<2>(q + (p - from), r.base + p, n);
        else compare(best, q + (p - from), r.base + p, n);
        square[c - g] = best.square;
        put_at((i64)((u64)r.origin + (u64)(i64)r.seg[c]), best.at);
      }
      scatter8(out, m, mine, r.origin, r.seg + g, __builtin_elementwise_sqrt(load<d8>(square)), runs);
    }
  }

  NormMax(const Call& call, const T* x, T* out, Positions* at, i64 n, i64 m, i64 k)
      : x(x), k(k), out(out), at(at), narrow(call.narrow_at) {
    idx = call.idx;
    this->n = n;
    this->m = m;
    items = 1;
    part_bytes = sizeof(Largest);
    hooks[0] = hooks[1] = nullptr;
    list = [](const Reduction* r, Runs& runs, int count, i64 mine, char*) { of(r).list_of(runs, count, mine); };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char*) {
      *(Largest*)part = of(r).scan(first, count);
    };
    join = [](const Reduction* r, const void* parts, i64 n, i64 s) {
      const Largest* p = (const Largest*)parts;
      Largest best = p[0];
      for (i64 c = 1; c < super_count(n); c++)
        if (beats(p[c].square, best.square)) best = p[c];
      of(r).set(s, best);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) {
      const NormMax& c = of(r);
      __builtin_memset(c.out + a, 0, (u64)(b - a) * sizeof(T));
      const u64 size = c.narrow ? 4 : 8;
      __builtin_memset((char*)c.at + (u64)a * size, 255, (u64)(b - a) * size);   // -1
    };
    if (call.strided) by_copies();
  }
  NormMax copied(i64 i, i64 rows, char* work) const {
    NormMax c = *this;
    Copies copies = {work};
    copies.rows(c.x, i, rows, 0, k);
    return c;
  }
  void by_copies() {
    most_listed = min(CHUNK, max(1, PIECE / max(1, k)));
    work_bytes = max(PIECE, k) * (i64)sizeof(T);
    list = [](const Reduction* r, Runs& runs, int count, i64 mine, char* work) {
      of(r).copied(runs.base, (i64)runs.start[count - 1] + runs.size[count - 1], work).list_of(runs, count, mine);
    };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char* work) {
      const i64 rows = max(1, PIECE / max(1, of(r).k));
      Largest best = {-1, first};
      for (i64 i = 0; i < count; i += rows) {
        const i64 n = min(rows, count - i);
        const Largest found = of(r).copied(first + i, n, work).scan(first + i, n);
        if (beats(found.square, best.square)) best = found;
      }
      *(Largest*)part = best;
    };
  }
};

// f(s, i, rank) for each of m positions i; with i = -1 where that is not an element.
template <class F> void at_positions(const Positions* at, bool narrow, i64 n, i64 m, int threads, const F& f) {
  const Index index = {at, !narrow};
  parallel(m < 4096 ? 1 : threads, [&](int rank) {
    const int shares = m < 4096 ? 1 : threads;
    for (i64 s = share(m, shares, rank); s < share(m, shares, rank + 1); s++) {
      const i64 i = index[s];
      f(s, (u64)i < (u64)n ? i : -1, rank);
    }
  });
}
template <class T> void fill_zero(T* p, i64 count, int threads) {
  parallel(threads, [&](int rank) {
    const i64 b = share(count, threads, rank);
    __builtin_memset(p + b, 0, (u64)(share(count, threads, rank + 1) - b) * sizeof(T));
  });
}
template <class T>
i64 norm_max_first(const Call& call, const T* g, const T* x, const Positions* at, T* gx, i64 n, i64 m, i64 k) {
  const Single<T> rows{x, k, call.strided}, cotangents{g, 1, call.strided};
  const i64 own = call.strided ? lines(k * (i64)sizeof(T)) : 0;
  const Scratch scratch(own * call.threads);
  if (!scratch.p) return NO_MEMORY;
  fill_zero(gx, n * k, call.threads);
  at_positions(at, call.narrow_at, n, m, call.threads, [&](i64 s, i64 i, int rank) {
    if (i < 0) return;
    T one;
    const T* const p = rows(i, (T*)(scratch.p + rank * own));
    const double norm = __builtin_elementwise_sqrt(square_norm(p, k)), c = (double)*cotangents(s, &one);
    for (i64 q = 0; q < k; q++) gx[i * k + q] = (T)(norm == 0 ? 0.0 : c * ((double)p[q] / norm));
  });
  return -1;
}
template <class T>
i64 norm_max_second(const Call& call, const T* v, const T* g, const T* x, const Positions* at, T* gg, T* gx, i64 n, i64 m,
                    i64 k) {
  const Single<T> rows{x, k, call.strided}, moves{v, k, call.strided}, cotangents{g, 1, call.strided};
  const i64 own = call.strided ? lines(k * (i64)sizeof(T)) : 0;
  const Scratch scratch(2 * own * call.threads);
  if (!scratch.p) return NO_MEMORY;
  fill_zero(gx, n * k, call.threads);
  at_positions(at, call.narrow_at, n, m, call.threads, [&](i64 s, i64 i, int rank) {
    gg[s] = T(0);
    if (i < 0) return;
    T one;
    const T *const p = rows(i, (T*)(scratch.p + 2 * rank * own));
    const T *const c = moves(i, (T*)(scratch.p + (2 * rank + 1) * own));
    const double norm = __builtin_elementwise_sqrt(square_norm(p, k));
    if (norm == 0) return;
    const double inner = row_sum(k, [=](i64 q) { return (double)p[q] / norm * (double)c[q]; });   // <x / ||x||, v>
    gg[s] = (T)inner;
    const double each = (double)*cotangents(s, &one) / norm;
    for (i64 q = 0; q < k; q++) gx[i * k + q] = (T)(each * ((double)c[q] - (double)p[q] / norm * inner));
  });
  return -1;
}
}}  // namespace seg
