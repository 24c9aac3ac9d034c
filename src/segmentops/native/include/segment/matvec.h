// Per-element products with a matrix of the segment, (k, j) row-major.
//
// Lanes are the components of the result; the contraction is added in ascending order in float64 from 0.0, beyond three
// terms of float64 data by TwoSum, rounded once. 3 x 3 matrices stay in three registers of four lanes while the segment does not change.
#pragma once
#include "each.h"

namespace seg { namespace {
#pragma clang fp contract(off)

// out[i] = sum over p < P of mat[p][s]^T v[p][i]; transposed: of mat[p][s] v[p][i].
template <class T, bool TRANSPOSED, int P> struct Matvec : Each {
  const T *v[P], *mat[P];
  T* out;
  i64 k, j;

  template <class... Operands>
  Matvec(const Call& call, T* out, i64 m, i64 k, i64 j, Operands... given) : out(out), k(k), j(j) {
    const T* const all[] = {given...};        // v, mat for each product
    for (int p = 0; p < P; p++) {
      v[p] = all[2 * p];
      mat[p] = all[2 * p + 1];
    }
    idx = call.idx;
    this->m = m;
    run = run_loop<Matvec>;
    if (call.strided) measure(*this);
  }
  template <class F> void operands(F& f) {
    for (int p = 0; p < P; p++) {
      f.rows(v[p], TRANSPOSED ? j : k);
      f.segments(mat[p], k * j);
    }
  }
  void loop(i64 b, i64 e) const {
    stretches(idx, b, e, [&](const i32* s, i64 origin, i64 b, i64 e) {
      if (k != 3 || j != 3) { any(s, origin, b, e); return; }
      for (i64 i = b; i < e; i += 256) three(s + (i - b), origin, i, min(i + 256, e));
    });
  }
  // What multiplies component 0, 1, 2 of the vector; the fourth lane is arbitrary.
  static SEG_INLINE void columns3(const T* a, d4* c) {
    const d4 x = wide(load4(a)), y = wide(load4(a + 3)), w = wide(load4(a + 5));   // nothing past the matrix
    const d4 z = __builtin_shufflevector(w, w, 1, 2, 3, 3);
    if constexpr (TRANSPOSED) {
      const d4 a01 = __builtin_shufflevector(x, y, 0, 4, 1, 5), a2 = __builtin_shufflevector(x, y, 2, 6, 2, 6);
      c[0] = __builtin_shufflevector(a01, z, 0, 1, 4, 4);
      c[1] = __builtin_shufflevector(a01, z, 2, 3, 5, 5);
      c[2] = __builtin_shufflevector(a2, z, 0, 1, 6, 6);
    } else {
      c[0] = x;
      c[1] = y;
      c[2] = z;
    }
  }
  void three(const i32* s, i64 origin, i64 b, i64 e) const {
    d4 c[P][3] = {};
    i64 held = -1;                            // the segment in c
    // Where it changes often, a branch that nobody can predict costs more than reading the matrix again.
    const bool often = ((i64)s[e - 1 - b] - s[0]) * 8 > e - b;
    for (i64 i = b; i < e; i++) {
      const i64 at = (i64)((u64)origin + (u64)(i64)s[i - b]);
      d4 r = {};
      if ((u64)at < (u64)m) {
        if (often || at != held) {
          for (int p = 0; p < P; p++) columns3(mat[p] + 9 * at, c[p]);
          held = at;
        }
        for (int p = 0; p < P; p++) {
          const T* x = v[p] + 3 * i;
          d4 a = {};
          for (int q = 0; q < 3; q++) a += c[p][q] * (double)x[q];
          r = p ? r + a : a;
        }
      }
      if (i + 1 < e) {
        store4(out + 3 * i, r);               // four lanes; the next element overwrites the fourth
      } else {
        SEG_ALIGNED T last[4];
        store4(last, r);
        __builtin_memcpy(out + 3 * i, last, 3 * sizeof(T));
      }
    }
  }
  // What multiplies component q of the vector, for components l, l + 1, ... of the result; lanes past them are arbitrary.
  SEG_INLINE d8 column(int p, i64 at, i64 l, i64 q) const {
    const i64 first = at * k * j + (TRANSPOSED ? l * j + q : q * j + l);
    if (!TRANSPOSED && first + 8 <= m * k * j) return wide(load8(mat[p] + first));
    return load_first(mat[p] + first, (TRANSPOSED ? k : j) - l, TRANSPOSED ? j : 1);
  }
  void any(const i32* s, i64 origin, i64 b, i64 e) const {
    const i64 lanes = TRANSPOSED ? k : j, terms = TRANSPOSED ? j : k, parts = (lanes + 7) / 8;
    constexpr int COLUMNS = 64;               // of so many, the matrix stays as it is needed
    SEG_ALIGNED d8 c[P][COLUMNS];
    const bool holds = parts * terms <= COLUMNS, compensated = Compensated<T>::yes && terms > 3;
    i64 held = -1;                            // the segment in c
    for (i64 i = b; i < e; i++) {
      const i64 at = (i64)((u64)origin + (u64)(i64)s[i - b]);
      T* const to = out + i * lanes;
      if ((u64)at >= (u64)m) { __builtin_memset(to, 0, (u64)lanes * sizeof(T)); continue; }
      if (holds && at != held) {
        for (int p = 0; p < P; p++)
          for (i64 a = 0; a < parts; a++)
            for (i64 q = 0; q < terms; q++) c[p][a * terms + q] = column(p, at, 8 * a, q);
        held = at;
      }
      for (i64 a = 0; a < parts; a++) {
        d8 r = {};
        for (int p = 0; p < P; p++) {
          const T* const x = v[p] + i * terms;
          d8 sum = {}, low = {};
          for (i64 q = 0; q < terms; q++) {
            const d8 term = (holds ? c[p][a * terms + q] : column(p, at, 8 * a, q)) * (double)x[q];
            if (compensated) two_sum(sum, low, term);
            else sum += term;
          }
          if (compensated) sum = total(sum, low);
          r = p ? r + sum : sum;
        }
        if ((e - i) * lanes - 8 * a >= 8) store8(to + 8 * a, r);   // what follows the row comes next
        else store8(to + 8 * a, r, lanes - 8 * a);
      }
    }
  }
};
}}  // namespace seg
