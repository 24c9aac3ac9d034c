// What a reduction adds: a term turns the flat scalars from i on into float64 lanes.
//
// A new reduction is a new term. It says how to make eight lanes (`at`), the eight or the first four of which only
// some exist (missing ones are zero, whatever is in memory there), and one; `from` moves its origin, `operands` lists
// what it reads.
#pragma once
#include "vector.h"

namespace seg { namespace {
#pragma clang fp contract(off)

template <class T> struct Sum {
  typedef T scalar;
  static constexpr int OPERANDS = 1;
  const T* x;
  template <class F> void operands(const F& f) { f(x); }
  Sum from(i64 i) const { return {x + i}; }
  d8 at(i64 i) const { return wide(load8(x + i)); }
  d8 at(i64 i, i32 k, i8 n) const { return wide(keep(load8(x + i), k, n)); }
  d4 at4(i64 i, i4 n) const { return wide(keep(load4(x + i), n)); }
  double one(i64 i) const { return (double)x[i]; }
};

// Eight or four products of T data.
template <class T, class V> SEG_INLINE auto product(V x, V y) {
  if constexpr (Scalar<T>::exact) return wide(x * y);
  else return wide(x) * wide(y);
}
// x * y, or for P = 2 one expression x * y + u * w.
template <class T, int P> struct Products;
template <class T> struct Products<T, 1> {
  typedef T scalar;
  static constexpr int OPERANDS = 2;
  const T *x, *y;
  template <class F> void operands(const F& f) { f(x); f(y); }
  Products from(i64 i) const { return {x + i, y + i}; }
  d8 at(i64 i) const { return product<T>(load8(x + i), load8(y + i)); }
  d8 at(i64 i, i32 k, i8 n) const { return product<T>(keep(load8(x + i), k, n), keep(load8(y + i), k, n)); }
  d4 at4(i64 i, i4 n) const { return product<T>(keep(load4(x + i), n), keep(load4(y + i), n)); }
  double one(i64 i) const { return (double)x[i] * (double)y[i]; }
};
template <class T> struct Products<T, 2> {
  typedef T scalar;
  static constexpr int OPERANDS = 4;
  Products<T, 1> a, b;
  template <class F> void operands(const F& f) { a.operands(f); b.operands(f); }
  Products from(i64 i) const { return {a.from(i), b.from(i)}; }
  d8 at(i64 i) const { return a.at(i) + b.at(i); }
  d8 at(i64 i, i32 k, i8 n) const { return a.at(i, k, n) + b.at(i, k, n); }
  d4 at4(i64 i, i4 n) const { return a.at4(i, n) + b.at4(i, n); }
  double one(i64 i) const { return a.one(i) + b.one(i); }
};
}}  // namespace seg
