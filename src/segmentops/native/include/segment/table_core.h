// What the core module exports: reductions, broadcasts and first derivatives.
#pragma once
#include "broadcast.h"
#include "call.h"
#include "columns.h"
#include "count.h"
#include "pages.h"
#include "tiers.h"

namespace seg { namespace {

i64 check(const void* idx, i64 n, i64 m, i64 mode) { return Call(idx, n, m, mode | 2).offence; }

// Whether idx, whose elements are `step` bytes apart, descends: -1 if it does not.
i64 order(const void* idx, i64 n, i64 step, i64 mode) {
  const Call call(idx, n, 0, mode & ~2);
  return descends(call.idx, n, step, call.threads) ? 0 : -1;
}

i64 count(const void* idx, i32* counts, i64 n, i64 m, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return reduce(Lengths(call.idx, n, m, Counts{counts}), call.threads);
}
// x (n, k) to segments, whatever the output makes of the sums.
template <class Term> using Simple = Term;
template <template <class> class Of, class T>
i64 pool_rows(const Call& call, const T* x, const Out<T>& out, i64 n, i64 k) {
  if (k == 1) return reduce(Flat<1, Of<Sum<T>>, T>(call, n, 1, Sum<T>{x}, out), call.threads);
  if (k == 3) return reduce(Flat<3, Of<Sum<T>>, T>(call, n, 1, Sum<T>{x}, out), call.threads);
  return reduce(Columns<Of<ColumnSum<T>>, T>(call, n, ColumnSum<T>{x, n, k}, out), call.threads);
}
template <class T> i64 sum(const T* x, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return pool_rows<Simple>(call, x, sums(out, m, k), n, k);
}
template <class T>
i64 mean(const T* x, const void* idx, T* out, T* raw, i32* counts, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  Out<T> to = sums(out, m, k);
  to.finish = MEAN;
  to.raw = raw;
  to.counts = counts;
  if (k == 0 && counts) return count(idx, counts, n, m, mode);   // nothing to add, elements to count all the same
  if constexpr (Compensated<T>::yes) return pool_rows<Careful>(call, x, to, n, k);
  return pool_rows<Simple>(call, x, to, n, k);
}
template <class T> i64 broadcast(const T* y, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(Broadcast<T>(call, y, out, m, k), n, call.threads);
}
template <class T>
i64 spread(const T* y, const void* idx, T* out, T* scratch, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  if (call.strided) {
    Rows<T>(y).copy(0, m, 0, k, scratch);
    y = scratch;
  }
  if (reduce(Lengths(call.idx, n, m, Shares<T>{y, scratch, k}), call.threads) != -1) return NO_MEMORY;
  return each(Broadcast<T>(call.plain(), scratch, out, m, k), n, call.threads);
}
template <class T> i64 mul(const T* x, const T* s, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(Elementwise<Scale<T>>(call, m, k, {{x}, s, out}), n, call.threads);
}
template <class T> i64 dot(const T* x, const T* y, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return reduce(Flat<1, Products<T, 1>, T>(call, n, k, {x, y}, sums(out, m, 1)), call.threads);
}
template <class T>
i64 mul_backward(const T* g, const T* x, const T* s, const void* idx, T* gx, T* gs, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const Elementwise<Scale<T>> scale(call, m, k, {{g}, s, gx});
  if (!gs) return gx ? each(scale, n, call.threads) : -1;
  Flat<1, Products<T, 1>, T> r(call, n, k, {g, x}, sums(gs, m, 1));
  if (gx) r.hooks[0] = &scale;
  return reduce(r, call.threads);
}
template <class T>
i64 rms_norm(const T* x, const void* idx, T* out, kept<T>* inv, T* raw, i32* counts, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  Out<T> to = sums(out, m, 1);
  to.finish = RMS;
  to.inv = inv;
  to.raw = raw;
  to.counts = counts;
  if (k == 0) zeros(to, 0, m);
  if (k == 0 && counts) return count(idx, counts, n, m, mode);
  return reduce(Flat<1, Products<T, 1>, T>(call, n, k, {x, x}, to), call.threads);
}
template <class T>
i64 rms_norm_backward(const T* g, const T* x, const kept<T>* inv, const void* idx, T* gx, i64 n, i64 m, i64 k,
                      i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(Elementwise<ScaleTwice<T>>(call, m, k, {{x}, g, inv, gx}), n, call.threads);
}
}}  // namespace seg
