// What the second module exports: matrices, maxima, and the rest of the second derivatives.
#pragma once
#include "call.h"
#include "columns.h"
#include "each.h"
#include "extreme.h"
#include "matvec.h"
#include "norm_max.h"
#include "pages.h"
#include "tiers.h"

namespace seg { namespace {

// A reduction with the per-element outputs that are wanted beside it; or, if it is not wanted (or has no columns, so
// that it would go over no element), those alone.
template <class R> i64 fused(R* r, const Each* first, const Each* second, i64 n, int threads) {
  if (r) {
    r->hooks[0] = first;
    r->hooks[1] = second;
    return reduce(static_cast<R&&>(*r), threads);
  }
  const Each* const loops[] = {first, second};
  for (const Each* loop : loops)
    if (loop && each(*loop, n, threads) != -1) return NO_MEMORY;
  return -1;
}

template <class T>
i64 dot_add(const T* x, const T* y, const T* u, const T* w, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return reduce(Flat<1, Products<T, 2>, T>(call, n, k, {{x, y}, {u, w}}, sums(out, m, 1)), call.threads);
}
template <class T>
i64 mul_add(const T* x, const T* s, const T* y, const T* t, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(Elementwise<ScaleAdd<T>>(call, m, k, {{x, y}, s, t, out}), n, call.threads);
}
template <class T>
i64 rms_norm_double_backward(const T* v, const T* g, const T* x, const kept<T>* inv, const void* idx, T* gg, T* gx,
                                    double* inner, i32* counts, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  Out<T> to = sums<T>(nullptr, m, 1);
  to.wide = inner;
  to.counts = counts;
  if (reduce(Flat<1, Products<T, 1>, T>(call, n, k, {v, x}, to), call.threads) != -1) return NO_MEMORY;
  const Elementwise<NormSecond<T>> second(call, m, k, {{v, x}, g, inv, inner, counts, gx});
  if (each(second, n, call.threads) != -1) return NO_MEMORY;
  for (i64 s = 0; s < m; s++)                 // of data that is all zero, the gradient is 0 by definition: 0 * inf is 0
    gg[s] = inv[s] == 0 && inner[s] != inner[s] ? T(0) : (T)(inner[s] * decoded((double)inv[s]));
  return -1;
}
template <class T>
i64 max_norm(const T* x, const void* idx, T* out, Positions* at, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return reduce(NormMax<T>(call, x, out, at, n, m, k), call.threads);
}
template <class T>
i64 max_norm_backward(const T* g, const T* x, const Positions* at, const void* idx, T* gx, i64 n, i64 m, i64 k,
                      i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return norm_max_first(call, g, x, at, gx, n, m, k);
}
template <class T>
i64 max_norm_double_backward(const T* v, const T* g, const T* x, const Positions* at, const void* idx, T* gg, T* gx,
                             i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return norm_max_second(call, v, g, x, at, gg, gx, n, m, k);
}

template <class T, bool LARGEST>
i64 extreme(const T* x, const void* idx, T* out, Positions* at, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return reduce(Extreme<T>(call, x, out, at, n, m, k, LARGEST ? 1.0 : -1.0), call.threads);
}
template <class T> i64 max(const T* x, const void* idx, T* out, Positions* at, i64 n, i64 m, i64 k, i64 mode) {
  return extreme<T, true>(x, idx, out, at, n, m, k, mode);
}
template <class T> i64 min(const T* x, const void* idx, T* out, Positions* at, i64 n, i64 m, i64 k, i64 mode) {
  return extreme<T, false>(x, idx, out, at, n, m, k, mode);
}
template <class T>
i64 pick(const T* x, const Positions* at, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const Scalars<T> from(x, n, k, call.strided);
  at_positions(at, call.narrow_at, n, m * k, call.threads, [&](i64 j, i64 i, int) {
    out[j] = i < 0 ? T(0) : from(i, j % k);
  });
  return -1;
}
template <class T>
i64 place(const T* y, const Positions* at, const void* idx, T* out, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const Scalars<T> from(y, m, k, call.strided);
  fill_zero(out, n * k, call.threads);
  at_positions(at, call.narrow_at, n, m * k, call.threads, [&](i64 j, i64 i, int) {
    if (i >= 0) out[i * k + j % k] = from(j / k, j % k);
  });
  return -1;
}

template <class T, bool TRANSPOSED>
Matvec<T, TRANSPOSED, 1> product(const Call& call, const T* v, const T* mat, T* out, i64 m, i64 k, i64 j) {
  return {call, out, m, k, j, v, mat};
}
template <class T>
Matvec<T, false, 2> product_add(const Call& call, const T* v, const T* a, const T* w, const T* b, T* out, i64 m,
                                       i64 k, i64 j) {
  return {call, out, m, k, j, v, a, w, b};
}
template <class T>
i64 matvec(const T* v, const T* mat, const void* idx, T* out, i64 n, i64 m, i64 k, i64 j, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(product<T, false>(call, v, mat, out, m, k, j), n, call.threads);
}
template <class T>
i64 matvec_t(const T* g, const T* mat, const void* idx, T* out, i64 n, i64 m, i64 k, i64 j, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(product<T, true>(call, g, mat, out, m, k, j), n, call.threads);
}
template <class T>
i64 matvec_add(const T* v, const T* a, const T* w, const T* b, const void* idx, T* out, i64 n, i64 m, i64 k, i64 j,
                      i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return each(product_add(call, v, a, w, b, out, m, k, j), n, call.threads);
}
template <class T>
i64 outer(const T* u, const T* w, const void* idx, T* out, i64 n, i64 m, i64 k, i64 j, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  return reduce(Columns<Outer<T>, T>(call, n, {u, w, n, k, j}, sums(out, m, k * j)), call.threads);
}

template <class T>
i64 dot_backward(const T* g, const T* x, const T* y, const void* idx, T* gx, T* gy, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const Elementwise<Scale<T>> first(call, m, k, {{y}, g, gx}), second(call, m, k, {{x}, g, gy});
  return fused((Reduction*)nullptr, gx ? &first : nullptr, gy ? &second : nullptr, n, call.threads);
}
template <class T>
i64 matvec_backward(const T* g, const T* v, const T* mat, const void* idx, T* gv, T* gm, i64 n, i64 m, i64 k, i64 j,
                           i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const auto first = product<T, true>(call, g, mat, gv, m, k, j);
  Columns<Outer<T>, T> r(call, n, {v, g, n, k, j}, sums(gm, m, k * j));
  return fused(gm && k * j ? &r : nullptr, gv ? &first : nullptr, nullptr, n, call.threads);
}
template <class T>
i64 mul_double_backward(const T* a, const T* b, const T* g, const T* x, const T* s, const void* idx, T* gg, T* gx,
                               T* gs, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const Elementwise<ScaleAdd<T>> first(call, m, k, {{a, x}, s, b, gg});
  const Elementwise<Scale<T>> second(call, m, k, {{g}, b, gx});
  Flat<1, Products<T, 1>, T> r(call, n, k, {g, a}, sums(gs, m, 1));
  return fused(gs ? &r : nullptr, gg ? &first : nullptr, gx ? &second : nullptr, n, call.threads);
}
template <class T>
i64 dot_double_backward(const T* a, const T* b, const T* g, const T* x, const T* y, const void* idx, T* gg, T* gx,
                               T* gy, i64 n, i64 m, i64 k, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const Elementwise<Scale<T>> first(call, m, k, {{b}, g, gx}), second(call, m, k, {{a}, g, gy});
  Flat<1, Products<T, 2>, T> r(call, n, k, {{a, y}, {x, b}}, sums(gg, m, 1));
  return fused(gg ? &r : nullptr, gx ? &first : nullptr, gy ? &second : nullptr, n, call.threads);
}
template <class T>
i64 matvec_double_backward(const T* a, const T* b, const T* g, const T* v, const T* mat, const void* idx, T* gg,
                                  T* gv, T* gm, i64 n, i64 m, i64 k, i64 j, i64 mode) {
  const Call call(idx, n, m, mode);
  if (call.offence >= 0) return call.offence;
  const auto first = product_add(call, a, mat, v, b, gg, m, k, j);
  const auto second = product<T, true>(call, g, b, gv, m, k, j);
  Columns<Outer<T>, T> r(call, n, {a, g, n, k, j}, sums(gm, m, k * j));
  return fused(gm && k * j ? &r : nullptr, gg ? &first : nullptr, gv ? &second : nullptr, n, call.threads);
}
}}  // namespace seg
