// out[i] = y[idx[i]]: copies, so no arithmetic and no float64.
#pragma once
#include "each.h"

namespace seg { namespace {

template <class S> struct Broadcast : Each {
  typedef typename seg::Scalar<S>::word T;
  const T* y;
  T* out;
  i64 k;

  Broadcast(const Call& call, const S* y, S* out, i64 m, i64 k) : y((const T*)y), out((T*)out), k(k) {
    idx = call.idx;
    this->m = m;
    run = run_loop<Broadcast>;
    if (call.strided) measure(*this);
  }
  template <class F> void operands(F& f) { f.segments(y, k); }
  void loop(i64 b, i64 e) const {
    stretches(idx, b, e, [&](const i32* s, i64 origin, i64 b, i64 e) {
      if (k == 1) scalars(s, origin, b, e);
      else if (k == 3) triples(s, origin, b, e);
      else rows(s, origin, b, e);
    });
  }
  SEG_INLINE bool find(i64 origin, i32 s, i64& at) const {
    at = (i64)((u64)origin + (u64)(i64)s);
    return (u64)at < (u64)m;
  }
  void rows(const i32* s, i64 origin, i64 b, i64 e) const {
    for (i64 i = b; i < e; i++) {
      i64 at;
      const bool ok = find(origin, s[i - b], at);
      T* const to = out + i * k;
      if (!ok) { __builtin_memset(to, 0, (u64)k * sizeof(T)); continue; }
      const T* const from = y + at * k;
      typedef T v8 __attribute__((vector_size(8 * sizeof(T))));
      typedef T line __attribute__((vector_size(64)));
      i64 j = 0;
      for (; j + (i64)(64 / sizeof(T)) <= k; j += 64 / sizeof(T)) store(to + j, load<line>(from + j));
      for (; j + 8 <= k; j += 8) store(to + j, load<v8>(from + j));
      if (j < k && k >= 8) store(to + k - 8, load<v8>(from + k - 8));   // the last eight, some of them again
      else if (k < 8 && (e - i) * k >= 8 && (m - at) * k >= 8) store(to, load<v8>(from));   // the next row follows
      else for (; j < k; j++) to[j] = from[j];
    }
  }
  void triples(const i32* s, i64 origin, i64 b, i64 e) const {
    typedef T t4 __attribute__((vector_size(4 * sizeof(T))));
    const Range range(origin, m - 1);         // of the last segment, four scalars cannot be read
    i64 i = b;
    for (; i + 8 <= e; i += 8) {
      const i32* const p = s + (i - b);
      const i8 v = load8(p);
      T* const to = out + 3 * i;
      if (!Eight::all((v >= range.first) & (v <= range.last))) {
        for (int q = 0; q < 8; q++) triple(origin, p[q], to + 3 * q);
        continue;
      }
#pragma clang loop unroll(full)
      for (int q = 0; q < 8; q += 4) {        // four elements are three vectors
        t4 r[4];
        for (int h = 0; h < 4; h++) r[h] = load<t4>(y + 3 * (origin + p[q + h]));
        store(to + 3 * q, __builtin_shufflevector(r[0], r[1], 0, 1, 2, 4));
        store(to + 3 * q + 4, __builtin_shufflevector(r[1], r[2], 1, 2, 4, 5));
        store(to + 3 * q + 8, __builtin_shufflevector(r[2], r[3], 2, 4, 5, 6));
      }
    }
    for (; i < e; i++) triple(origin, s[i - b], out + 3 * i);
  }
  SEG_INLINE void triple(i64 origin, i32 s, T* to) const {
    i64 at;
    const bool ok = find(origin, s, at);
    for (int w = 0; w < 3; w++) to[w] = ok ? y[3 * at + w] : T(0);
  }
  void scalars(const i32* s, i64 origin, i64 b, i64 e) const {
    i64 i = b, at;
#ifdef __AVX512F__
    // The segments of L neighbours are usually within L of each other (see each.h). The permute takes lanes modulo L,
    // so for an idx that is not sorted the two ends alone would say too little to be right, but enough to be safe.
    constexpr int L = sizeof(T) == 8 ? 8 : 16;
    for (; i + L <= e; i += L) {
      const i32 *p = s + (i - b), a = p[0], z = p[L - 1];
      const bool ok = find(origin, a, at);
      typedef T lanes __attribute__((vector_size(L * sizeof(T))));
      if (ok && (u32)z - (u32)a < (u32)L && at + L <= m && ordered(p, a, z)) {
        if constexpr (L == 16)
          store(out + i, permute16(load<lanes>(y + at), load<i16>(p) - a));
        else
          store(out + i, (d8)__builtin_ia32_permvardf512(load<d8>(y + at), __builtin_convertvector(load8(p) - a, l8)));
      } else if (ok && a == z && ordered(p, a, z)) {
        store(out + i, splat<lanes>(y[at]));
      } else {
        for (int q = 0; q < L; q++) out[i + q] = find(origin, p[q], at) ? y[at] : T(0);
      }
    }
#endif
    for (; i < e; i++) out[i] = find(origin, s[i - b], at) ? y[at] : T(0);
  }
#ifdef __AVX512F__
  template <class V> static SEG_INLINE V permute16(V v, i16 k) {
    if constexpr (sizeof(T) == 4) return (V)__builtin_ia32_permvarsi512((i16)v, k);
    else return __builtin_convertvector((i16)__builtin_ia32_permvarsi512(__builtin_convertvector(v, i16), k), V);
  }
  static SEG_INLINE bool ordered(const i32* p, i32 a, i32 z) {   // all between a and z
    if constexpr (sizeof(T) < 8) {
      const i16 v = load<i16>(p);
      return bitmask((v >= a) & (v <= z)) == 0xffff;
    } else {
      const i8 v = load8(p);
      return bitmask8((v >= a) & (v <= z)) == 255;
    }
  }
#endif
};
}}  // namespace seg
