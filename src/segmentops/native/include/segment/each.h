// Per-element loops: out[i] from the data of element i and coefficients of its segment.
//
// Eight elements at a time. Neighbours in a sorted idx belong to neighbouring segments, so one vector usually holds a
// coefficient of all eight and a permute picks them; otherwise each is fetched alone. Nothing relies on sorted idx:
// it only decides which way is taken. An element outside [0, m) gets 0, also where its data is NaN.
// An operation is one expression (`value`, rounded once) and the coefficients that it takes, both in `lanes`: float64,
// or float32 where that is exact.
#pragma once
#include "reduce.h"

namespace seg { namespace {
#pragma clang fp contract(off)

// Which of the numbers origin + s lie in [0, m): those with first <= s <= last.
struct Range {
  i64 origin, m;
  i32 first, last;
  Range(i64 origin, i64 m) : origin(origin), m(m) {
    constexpr i64 low = -0x80000000LL, high = 0x7fffffffLL;
    // As far as int32 reaches; nothing, where [0, m) is out of its reach.
    const bool reach = m > 0 && origin <= m - 1 - low && origin >= -high;
    first = (i32)(reach ? max(-origin, low) : high);
    last = (i32)(reach ? min(m - 1 - origin, high) : low);
  }
};

template <class T> SEG_NOINLINE void fetch(const T* y, i64 origin, i64 m, const i32* s, double* to) {
  for (int e = 0; e < 8; e++) {
    const u64 at = (u64)origin + (u64)(i64)s[e];
    to[e] = at < (u64)m ? (double)y[at] : 0.0;
  }
}
// The segments of eight elements, and a segment array's values for them.
struct Eight {
  Range r;
  i8 s;
  i64 low;
  bool near;                                  // all are among low .. low + 7, and these are inside [0, m)
  i8 lane;
  bool inside;
  l8 valid;

  static SEG_INLINE bool all(i8 v) { return bitmask8(v) == 255; }
  SEG_INLINE Eight(const Range& r, i8 s, i32 first) : r(r), s(s), valid{} {
    low = max(0, min((i64)((u64)r.origin + (u64)(i64)first), r.m - 8));
    const i64 from = (i64)((u64)low - (u64)r.origin);
    lane = s - (i32)from;
    near = r.m >= 8 && from == (i32)from && all((lane & ~7) == 0);
    inside = near;
    if (!near) {
      const i8 in = (s >= r.first) & (s <= r.last);
      valid = __builtin_convertvector(in, l8);
      inside = all(in);
    }
  }
  template <class V, class T> SEG_INLINE V pick(const T* y) const {
    if (near) return permute(__builtin_convertvector(load8(y + low), V), lane);
    if (inside && all(s == s[0])) return splat<V>(y[r.origin + s[0]]);
    SEG_ALIGNED double to[8];
    SEG_ALIGNED i32 at[8];
    store(at, s);
    fetch(y, r.origin, r.m, at, to);
    return __builtin_convertvector(load<d8>(to), V);
  }
};
// Fewer than eight: the last one is repeated.
SEG_INLINE i8 load_segments(const i32* p, i64 count) {
  if (count >= 8) return load8(p);
  SEG_ALIGNED i32 s[8];
  for (int e = 0; e < 8; e++) s[e] = p[e < count ? e : count - 1];
  return load8(s);
}

// Coefficient of each of 24 scalars, three per element, in three vectors.
template <class V> SEG_INLINE V thirds(V c, int part) {
  if (part == 0) return __builtin_shufflevector(c, c, 0, 0, 0, 1, 1, 1, 2, 2);
  if (part == 1) return __builtin_shufflevector(c, c, 2, 3, 3, 3, 4, 4, 4, 5);
  return __builtin_shufflevector(c, c, 5, 5, 6, 6, 6, 7, 7, 7);
}

constexpr int NARROW = 31;                    // scalars in an element, at most, of which eight elements go together

// `run` of a loop.
template <class Loop> void run_loop(const Each* self, i64 b, i64 e, char* work) {
  const Loop& loop = *(const Loop*)self;
  if (loop.pieces.rows) by_pieces(loop, b, e, work);
  else loop.loop(b, e);
}

// What an operation reads, in[0] .. in[IN - 1] and segment arrays, writes, and how, is in Op; elements have k scalars.
template <class Op> struct Elementwise : Each {
  typedef typename Op::lanes lanes;
  Op op;
  i64 k;

  Elementwise(const Call& call, i64 m, i64 k, const Op& op) : op(op), k(k) {
    idx = call.idx;
    this->m = m;
    run = run_loop<Elementwise>;
    if (call.strided) measure(*this);
  }
  template <class F> void operands(F& f) {
    for (auto& x : op.in) f.rows(x, k);
    op.segments(f);
  }
  static SEG_INLINE lanes masked(lanes v, bool inside, l8 valid) {
    return inside ? v : (__builtin_convertvector(valid, decltype(v == v)) ? v : lanes{});
  }
  static SEG_INLINE lanes eight(const Op& op, i64 i, const lanes* c) {
    lanes x[Op::IN];
    for (int q = 0; q < Op::IN; q++) x[q] = __builtin_convertvector(load8(op.in[q] + i), lanes);
    return Op::value(x, c);
  }
  void loop(i64 b, i64 e) const {
    SEG_ALIGNED i8 owner[NARROW];             // of each scalar of eight elements, which of them has it
    const bool narrow = k <= NARROW && k != 1 && k != 3;
    for (i64 part = 0; narrow && part < k; part++)
      owner[part] = __builtin_convertvector((wide(iota8(8 * (i32)part)) + 0.5) / (double)k, i8);
    stretches(idx, b, e, [&](const i32* s, i64 origin, i64 b, i64 e) {
      const Range range(origin, m);
      if (k == 1) stretch<1>(range, s, b, e);
      else if (k == 3) stretch<3>(range, s, b, e);
      else if (narrow) vectors(range, owner, s, b, e);
      else stretch<0>(range, s, b, e);
    });
  }
  template <int K> void stretch(const Range& range, const i32* s, i64 b, i64 e) const {
    const Op op = this->op;                   // in registers: a store might change what is read through `this`
    i64 i = b;
    if constexpr (K) {
      for (; i + 8 <= e; i += 8) {
        const Eight g(range, load8(s + (i - b)), s[i - b]);
        lanes c[Op::C];
        op.coefficients(g, c);
        if constexpr (K == 1) {
          store8(op.out + i, masked(eight(op, i, c), g.inside, g.valid));
        } else {
          for (int part = 0; part < 3; part++) {
            const i64 at = 3 * i + 8 * part;
            lanes t[Op::C];
            for (int q = 0; q < Op::C; q++) t[q] = thirds(c[q], part);
            store8(op.out + at, masked(eight(op, at, t), g.inside, thirds(g.valid, part)));
          }
        }
      }
    }
    for (; i < e; i += 8) {
      const i64 count = min(8, e - i);
      const Eight g(range, load_segments(s + (i - b), count), s[i - b]);
      lanes c[Op::C];
      op.coefficients(g, c);
      rows(i, count, g, c);
    }
  }
  // Eight elements of k scalars are k vectors.
  SEG_NOINLINE void vectors(const Range& range, const i8* owner, const i32* s, i64 b, i64 e) const {
    const Op op = this->op;
    i64 i = b;
    for (; i + 8 <= e; i += 8) {
      const Eight g(range, load8(s + (i - b)), s[i - b]);
      lanes c[Op::C];
      op.coefficients(g, c);
      for (i64 part = 0; part < k; part++) {
        const i64 at = i * k + 8 * part;
        lanes t[Op::C];
        for (int q = 0; q < Op::C; q++) t[q] = permute(c[q], owner[part]);
        const l8 valid = g.inside ? g.valid : (l8)permute((d8)g.valid, owner[part]);
        store8(op.out + at, masked(eight(op, at, t), g.inside, valid));
      }
    }
    if (i < e) stretch<0>(range, s + (i - b), i, e);
  }
  // Any width, element by element.
  SEG_NOINLINE void rows(i64 i, i64 count, const Eight& g, const lanes* c) const {
    for (i64 e = 0; e < count; e++) {
      auto* out = op.out + (i + e) * k;
      if (!g.inside && !g.valid[e]) { __builtin_memset(out, 0, (u64)k * sizeof(*out)); continue; }
      lanes t[Op::C];
      for (int q = 0; q < Op::C; q++) t[q] = splat<lanes>(c[q][e]);
      i64 j = 0;
      for (; j + 8 <= k; j += 8) store8(out + j, eight(op, (i + e) * k + j, t));
      if (j == k) continue;
      if (k >= 8) {                           // the last eight scalars, some of them again
        store8(out + k - 8, eight(op, (i + e) * k + k - 8, t));
        continue;
      }
      lanes x[Op::IN];
      for (int q = 0; q < Op::IN; q++)
        x[q] = __builtin_convertvector(load_first(op.in[q] + (i + e) * k + j, k - j), lanes);
      store8(out + j, Op::value(x, t), k - j);
    }
  }
};

template <bool NARROW> struct Lanes { typedef d8 type; };
template <> struct Lanes<true> { typedef f8 type; };

template <class T> struct Scale {             // x * s; of float32, rounded once as it is
  typedef typename Lanes<Scalar<T>::exact || __is_same(T, float)>::type lanes;
  static constexpr int IN = 1, C = 1;
  const T* in[1];
  const T* s;
  T* out;
  template <class F> void segments(F& f) { f.segments(s, 1); }
  SEG_INLINE void coefficients(const Eight& g, lanes* c) const { c[0] = g.pick<lanes>(s); }
  static SEG_INLINE lanes value(const lanes* x, const lanes* c) { return x[0] * c[0]; }
};
template <class T> struct ScaleTwice {        // x * (s * t), t a by-product
  typedef d8 lanes;
  static constexpr int IN = 1, C = 1;
  const T* in[1];
  const T* s;
  const kept<T>* t;
  T* out;
  template <class F> void segments(F& f) { f.segments(s, 1); f.plain(t); }
  SEG_INLINE void coefficients(const Eight& g, d8* c) const { c[0] = g.pick<d8>(s) * decoded(g.pick<d8>(t)); }
  static SEG_INLINE d8 value(const d8* x, const d8* c) { return x[0] * c[0]; }
};
template <class T> struct ScaleAdd {          // x * s + y * t
  typedef d8 lanes;
  static constexpr int IN = 2, C = 2;
  const T* in[2];
  const T *s, *t;
  T* out;
  template <class F> void segments(F& f) { f.segments(s, 1); f.segments(t, 1); }
  SEG_INLINE void coefficients(const Eight& g, d8* c) const {
    c[0] = g.pick<d8>(s);
    c[1] = g.pick<d8>(t);
  }
  static SEG_INLINE d8 value(const d8* x, const d8* c) { return x[0] * c[0] + x[1] * c[1]; }
};
// g inv (v - (inner inv) (count inv x)): products in the order that neither overflows nor underflows.
template <class T> struct NormSecond {
  typedef d8 lanes;
  static constexpr int IN = 2, C = 3;
  const T* in[2];                             // v, x
  const T* g;
  const kept<T>* inv;
  const double* inner;
  const i32* counts;
  T* out;
  template <class F> void segments(F& f) { f.segments(g, 1); f.plain(inv); f.plain(inner); f.plain(counts); }
  SEG_INLINE void coefficients(const Eight& e, d8* c) const {
    const d8 i = decoded(e.pick<d8>(inv));
    c[0] = e.pick<d8>(g) * i;
    c[1] = e.pick<d8>(inner) * i;
    c[2] = e.pick<d8>(counts) * i;
  }
  static SEG_INLINE d8 value(const d8* x, const d8* c) { return c[0] * (x[0] - c[1] * (c[2] * x[1])); }
};
}}  // namespace seg
