// THE RULE: what fixes the bits of a segment. They are a function of its own items and width only.
//
// An item is W scalars (W = 1, or 3 for a sum over (N, 3)); a dot over (N, K) is a W = 1 reduction over the
// K * length scalars of the segment, read flat. Any other width follows the W = 3 rule column by column
// (columns.h). Counting items from the segment's first one, in float64 throughout:
//   row    8 items = 8 W lanes;            block      8 rows, missing lanes are zero
//   block  its rows are added lane by lane as a tree ((0+1)+(2+3))+((4+5)+(6+7))
//   super  S(n) items; its blocks are added lane by lane, in order; for float64 data by
//          TwoSum, errors in a second accumulator; then the lanes are added as a tree
//          (W = 1: neighbours first; W = 3: item e with e+4, then e+2, then e+1)
//   S(n) = 4096 items while n <= 64 * 4096, else the power of two >= n / 64
//   the supers of a segment (at most 64) are added in order, by TwoSum; then high + low + 0.0.
// A mean of float64 data makes the same high parts, and every addition on the way leaves its error in the low part, so
// that high + low is the sum but for terms of second order, and the mean of equal numbers is that number (output.h).
// Error for float64, u = eps / 2: 3u in a block, 3u in the lane tree, 1u at the end, the rest is compensated
// (second order in u): 7u = 3.5 eps of sum |x|, for every length. Adding a zero lane changes nothing but the sign
// of zero, and the final + 0.0 settles that; so short segments may skip rows that are all missing and are free to
// use any code that adds the same tree.
#pragma once
#include "terms.h"

namespace seg { namespace {
#pragma clang fp contract(off)

constexpr int BLOCK = 64;        // items in a block
constexpr int MAXSUPER = 64;     // supers of one segment
constexpr i64 SUPER = 4096;

SEG_INLINE i64 super_size(i64 n) {
  i64 s = SUPER;
  while (s * MAXSUPER < n) s *= 2;
  return s;
}
SEG_INLINE i64 super_count(i64 n) { return n <= SUPER ? 1 : (n + super_size(n) - 1) / super_size(n); }

template <class T> struct Compensated { static constexpr bool yes = false; };
template <> struct Compensated<double> { static constexpr bool yes = true; };

template <class V> SEG_INLINE void two_sum(V& hi, V& lo, V v) {
  const V s = hi + v, b = s - hi;
  lo += (hi - (s - b)) + (v - b);
  hi = s;
}
// A sum and the error that TwoSum has kept of it. V is d4 for W sums of one segment, d8 in columns.h and for the lanes of
// a mean.
template <class V> struct Pair { V hi, lo; };
template <int... LANES, class V> SEG_INLINE auto shuffle(V a, V b) { return __builtin_shufflevector(a, b, LANES...); }
template <int... LANES, class V> SEG_INLINE auto shuffle(Pair<V> a, Pair<V> b) {
  const auto hi = shuffle<LANES...>(a.hi, b.hi);
  return Pair<__typeof__(+hi)>{hi, shuffle<LANES...>(a.lo, b.lo)};
}

// a + b, and a + b * 1: the same to the last bit. Where every lane is converted first, the units that add are busy with
// that, and those that multiply are idle: a long sum of float16 gains a fifth. ONE is volatile so that Clang does not
// see through it.
const volatile double ONE = 1.0;
struct Added {
  template <class V> SEG_INLINE V operator()(V a, V b) const { return a + b; }
};
#if defined(__FMA__) || defined(__aarch64__)
struct AddedByMultipliers : Added {
  d8 one = d8{} + ONE;
  using Added::operator();
  SEG_INLINE d8 operator()(d8 a, d8 b) const { return __builtin_elementwise_fma(b, one, a); }
};
#else
typedef Added AddedByMultipliers;
#endif
// The sum of two numbers or pairs as a pair, by both kinds of units.
struct AddedWithErrors {
  AddedByMultipliers plus;
  template <class V> SEG_INLINE Pair<V> operator()(V a, V b) const {
    const V s = a + b, c = plus(s, -a), d = s - c;
    return {s, plus(plus(a, -d), b - c)};
  }
  template <class V> SEG_INLINE Pair<V> operator()(Pair<V> a, V b) const {
    const Pair<V> s = (*this)(a.hi, b);
    return {s.hi, plus(a.lo, s.lo)};
  }
  template <class V> SEG_INLINE Pair<V> operator()(Pair<V> a, Pair<V> b) const {
    const Pair<V> s = (*this)(a.hi, b.hi);
    return {s.hi, plus(a.lo + b.lo, s.lo)};
  }
};

// A term whose sums keep the errors of all additions.
template <class Term> struct Careful : Term {
  Careful() = default;
  Careful(const Term& t) : Term(t) {}
  Careful from(i64 i) const { return Term::from(i); }
};
// What a term's sums are made of and made by: for few rows and for whole blocks; the term for scalars that were copied.
template <class Term> struct Kind {
  typedef d8 lanes;
  typedef d4 sums;
  typedef Added plus;
  typedef AddedByMultipliers plus8;
  typedef Sum<double> copied;
};
template <class Term> struct Kind<Careful<Term>> {
  typedef Pair<d8> lanes;
  typedef Pair<d4> sums;
  typedef AddedWithErrors plus, plus8;
  typedef Careful<Sum<double>> copied;
};
template <class Term> using Lane = typename Kind<Term>::lanes;
template <class Term> using Sums = typename Kind<Term>::sums;
template <class V> SEG_INLINE void become(V& to, V v) { to = v; }   // also a pair from a pair
template <class V> SEG_INLINE void become(Pair<V>& to, V v) { to = {v, V{}}; }

// The block's tree over v[LO], v[LO + 1], ..., of which only the first R rows exist.
template <int LO, int N, int R, class V, class Plus> SEG_INLINE auto tree(const V* v, const Plus& plus) {
  if constexpr (N == 1) return v[LO];
  else if constexpr (LO + N / 2 >= R) return tree<LO, N / 2, R>(v, plus);
  else return plus(tree<LO, N / 2, R>(v, plus), tree<LO + N / 2, N / 2, R>(v, plus));
}
// The first R rows of a block at flat position p; of its scalars the first n exist.
template <int W, int R, class Term> SEG_INLINE void rows(const Term& t, i64 p, i8 n, Lane<Term>* h) {
  const typename Kind<Term>::plus plus;
  for (int w = 0; w < W; w++) {
    d8 v[R];
#pragma clang loop unroll(full)
    for (int r = 0; r < R; r++) v[r] = t.at(p + 8 * (r * W + w), 8 * (r * W + w), n);
    become(h[w], tree<0, 8, R>(v, plus));
  }
}
template <int W, class Term> SEG_INLINE void full(const Term& t, i64 p, Lane<Term>* h) {
  const typename Kind<Term>::plus8 plus;
  for (int w = 0; w < W; w++) {
    d8 v[8];
#pragma clang loop unroll(full)
    for (int r = 0; r < 8; r++) v[r] = t.at(p + 8 * (r * W + w));
    h[w] = tree<0, 8, 8>(v, plus);
  }
}

template <class T> SEG_INLINE void accumulate(d8& hi, d8& lo, d8 v) {
  if constexpr (Compensated<T>::yes) two_sum(hi, lo, v);
  else hi += v;
}
template <class T> SEG_INLINE void accumulate(Pair<d8>& hi, Pair<d8>&, Pair<d8> v) {
  hi = AddedWithErrors()(hi, v);
}

// Lanes of a row to W sums, in lanes 0 .. W-1 of the result; for W = 3, from the sums over e and e + 4.
template <class V, class H, class Plus> SEG_INLINE auto lanes3(V s0, H s1, const Plus& plus) {
  const auto z = plus(s0, shuffle<6, 7, 8, 9, 10, 11, 6, 7>(s0, shuffle<0, 1, 2, 3, 0, 1, 2, 3>(s1, s1)));
  return plus(shuffle<0, 1, 2, 3>(z, z), shuffle<3, 4, 5, 6>(z, z));
}
template <int W, class V, class Plus> SEG_INLINE auto lanes(const V* h, const Plus& plus) {
  if constexpr (W == 1) {
    const V a = plus(h[0], shuffle<1, 0, 3, 2, 5, 4, 7, 6>(h[0], h[0]));
    const auto l = shuffle<0, 2, 4, 6>(a, a);
    const auto b = plus(l, shuffle<1, 0, 3, 2>(l, l));
    return plus(b, shuffle<2, 3, 0, 1>(b, b));
  } else {
    return lanes3(plus(h[0], shuffle<4, 5, 6, 7, 8, 9, 10, 11>(h[1], h[2])),
                  plus(shuffle<0, 1, 2, 3>(h[1], h[1]), shuffle<4, 5, 6, 7>(h[2], h[2])), plus);
  }
}

template <class V> SEG_INLINE void add(Pair<V>& a, const Pair<V>& b) {
  two_sum(a.hi, a.lo, b.hi);
  a.lo += b.lo;
}
// After an overflow or an infinity the error term is NaN; then the sum is what the plain sum says.
template <class V> SEG_INLINE V total(V hi, V lo) { return (hi + (lo == lo ? lo : V{})) + 0.0; }
// What a term's sums are handed on as.
template <class Term, class V> SEG_INLINE auto handed_on(const Pair<V>& a) {
  if constexpr (__is_same(Lane<Term>, d8)) return total(a.hi, a.lo);
  else return a;
}
SEG_INLINE d8 handed_on(d8 v) { return v + 0.0; }   // of lanes without a low part
SEG_INLINE d4 handed_on(d4 v) { return v + 0.0; }
template <class V> SEG_INLINE Pair<V> handed_on(Pair<V> v) { return v; }
template <class Term, class V> SEG_INLINE auto total(const Pair<V>* parts, i64 count) {
  Pair<V> a = parts[0];
  for (i64 k = 1; k < count; k++) add(a, parts[k]);
  return handed_on<Term>(a);
}

// n items from flat position p to the lanes of a super; `flat` scalars may be read. `begun`: whole blocks before these
// are in hi and lo.
template <int W, class Term>
SEG_INLINE void add_blocks(const Term& t, i64 p, i64 n, i64 flat, bool begun, Lane<Term>* hi, Lane<Term>* lo) {
  typedef typename Term::scalar T;
  Lane<Term> v[W];
  const i64 head = n / BLOCK * BLOCK;
  const i32 left = (i32)(n - head);
  i64 k = 0;
  for (int w = 0; !begun && w < W; w++) lo[w] = {};
  if (head && !begun) {
    full<W>(t, p, hi);
    k = BLOCK;
  }
  for (; k < head; k += BLOCK) {
    full<W>(t, p + k * W, v);
    for (int w = 0; w < W; w++) accumulate<T>(hi[w], lo[w], v[w]);
  }
  if (left) {
    const i64 q = p + head * W;
    if (q + BLOCK * W <= flat) {
      rows<W, 8>(t, q, i8{} + left * W, v);
    } else {                                  // the end of the data: no whole vectors there
      SEG_ALIGNED double buf[BLOCK * W];
      for (int i = 0; i < BLOCK * W; i++) buf[i] = i < left * W ? t.one(q + i) : 0.0;
      full<W>(typename Kind<Term>::copied(Sum<double>{buf}), 0, v);
    }
    for (int w = 0; w < W; w++)
      if (begun || head) accumulate<T>(hi[w], lo[w], v[w]); else hi[w] = v[w];
  }
}
// Lanes of a super to its sums.
template <int W> SEG_INLINE Pair<d4> folded(const d8* hi, const d8* lo) {
  return {lanes<W>(hi, Added()), lanes<W>(lo, Added())};
}
template <int W> SEG_INLINE Pair<d4> folded(const Pair<d8>* hi, const Pair<d8>*) {
  return lanes<W>(hi, AddedWithErrors());
}
// n items, at most one super, from flat position p; `flat` scalars may be read.
template <int W, class Term> SEG_NOINLINE Pair<d4> super(const Term& t, i64 p, i64 n, i64 flat) {
#ifdef SEG_BREAK_RULE                         // for a test: the first block ends where one of the data does
  if (const i64 first = BLOCK - p / W % BLOCK; n > first && first < BLOCK) {
    Pair<d4> a = super<W>(t, p, first, flat);
    add(a, super<W>(t, p + first * W, n - first, flat));
    return a;
  }
#endif
  Lane<Term> hi[W], lo[W];
  add_blocks<W>(t, p, n, flat, false, hi, lo);
  return folded<W>(hi, lo);
}
// A whole segment.
template <int W, class Term> SEG_NOINLINE Sums<Term> segment(const Term& t, i64 p, i64 n, i64 flat) {
  const i64 s = super_size(n);
  Pair<d4> a = super<W>(t, p, min(n, s), flat);
  for (i64 k = s; k < n; k += s) add(a, super<W>(t, p + k * W, min(n - k, s), flat));
  return handed_on<Term>(a);
}
}}  // namespace seg
