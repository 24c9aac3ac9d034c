// Where the sums of segments go, and what is made of them on the way.
//
// The finish is chosen at run time, on the float64 accumulator of a segment and the number of its elements, so mean
// and rms_norm cost no further instances of the code that adds, and round once. An element whose segment is outside
// [0, m) ends here: its sum is dropped.
#pragma once
#include "rule.h"

namespace seg { namespace {
#pragma clang fp contract(off)

enum Finish { SUM, MEAN, RMS };

template <class T> struct Out {
  i64 m, width;        // value and raw are (m, width), the others (m,)
  T* value;            // the finished value
  Finish finish;
  i64 items;           // items per element: the rule counts items, a mean counts elements
  T* raw;              // all that follow may be null: the sum
  kept<T>* inv;        // 1 / (value * count), 0 where value = 0, as `encoded`
  double* wide;        // the accumulator as it is
  i32* counts;
  bool plain() const { return !raw && !inv && !wide && !counts; }   // nothing but the value
  template <class V> SEG_INLINE V elements(V n) const { return items == 1 ? n : n / (double)items; }   // of n items
};
template <class T> SEG_INLINE Out<T> sums(T* out, i64 m, i64 width) {
  return {m, width, out, SUM, 1, nullptr, nullptr, nullptr, nullptr};
}

template <class T> SEG_INLINE void clear(T* p, i64 a, i64 b, i64 width) {
  if (p) __builtin_memset(p + a * width, 0, (u64)((b - a) * width) * sizeof(T));
}
template <class T> SEG_INLINE void zeros(const Out<T>& o, i64 a, i64 b) {   // empty segments a .. b - 1
  clear(o.value, a, b, o.width);
  clear(o.raw, a, b, o.width);
  clear(o.inv, a, b, 1);
  clear(o.wide, a, b, 1);
  clear(o.counts, a, b, 1);
}

template <class V> SEG_INLINE V finished(Finish f, V sum, V count) {
  if (f == SUM) return sum;
  const V mean = sum / count;
  return f == MEAN ? mean : __builtin_elementwise_sqrt(mean);
}
// hi - q n for integers n and q = hi / n, rounded: a number, so nothing is lost.
template <class V> SEG_INLINE V residual(V hi, V q, V n) {
#if (defined(__FMA__) || defined(__aarch64__)) && !defined(SEG_PORTABLE)
  return __builtin_elementwise_fma(-q, n, hi);
#else
  const V scale = __builtin_elementwise_abs(q) > 0x1p990 ? V{} + 0x1p-40 : V{} + 1.0;   // so that nothing overflows
  q *= scale;
  const V a = q * 0x1.0000002p27, b = n * 0x1.0000002p27, qh = a - (a - q), nh = b - (b - n), ql = q - qh, nl = n - nh;
  const V p = q * n, e = ((qh * nh - p) + qh * nl + ql * nh) + ql * nl;   // p + e = q n
  return ((hi * scale - p) - e) / scale;
#endif
}
// A mean whose sum is hi + lo. After an overflow or an infinity the correction is NaN.
template <class V> SEG_INLINE V finished(Finish, const Pair<V>& sum, V count) {
  const V q = (sum.hi + 0.0) / count, r = residual(sum.hi, q, count) + (sum.lo == sum.lo ? sum.lo : V{});
  const V c = r / count;
  return c == c ? q + c : q;
}
template <class V> SEG_INLINE V plain_sum(V sum) { return sum; }
template <class V> SEG_INLINE V plain_sum(const Pair<V>& sum) { return total(sum.hi, sum.lo); }
SEG_INLINE d8 inverse(d8 value, d8 count) { return value == 0.0 ? d8{} : 1.0 / (value * count); }

template <class T, class V>
SEG_NOINLINE void put_finished(const Out<T>& o, i64 s, i64 c, i64 w, const V* sums, i64 n) {
  const i64 elements = n / o.items;
  const d8 count = d8{} + (double)elements, value = finished(o.finish, *sums, count), sum = plain_sum(*sums);
  if (o.value) store8(o.value + s * o.width + c, value, w);
  if (o.raw) store8(o.raw + s * o.width + c, sum, w);
  if (o.inv) o.inv[s] = (kept<T>)encoded<kept<T>>(inverse(value, count))[0];
  if (o.wide) o.wide[s] = sum[0];
  if (o.counts) o.counts[s] = (i32)elements;
}
// Columns c .. c + w - 1 of segment s, which has n items.
template <class T, class V> SEG_INLINE void put(const Out<T>& o, i64 s, i64 c, i64 w, V sum, i64 n) {
  if ((u64)s >= (u64)o.m) return;
  if (o.plain() && o.finish == SUM) store8(o.value + s * o.width + c, plain_sum(sum), w);
  else put_finished(o, s, c, w, &sum, n);
}
// W columns of segment s, in the first lanes of a vector of four.
template <int W, class T> SEG_INLINE void put_plain(T* value, i64 m, i64 s, d4 sum) {
  if ((u64)s >= (u64)m) return;
  SEG_ALIGNED T r[4];
  store4(r, sum);
  __builtin_memcpy(value + s * W, r, W * sizeof(T));
}
template <int W, class T, class V> SEG_INLINE void put(const Out<T>& o, i64 s, V sum, i64 n) {
  if (o.plain() && o.finish == SUM) { put_plain<W>(o.value, o.m, s, plain_sum(sum)); return; }
  if ((u64)s >= (u64)o.m) return;
  const auto all = shuffle<0, 1, 2, 3, 0, 1, 2, 3>(sum, sum);
  put_finished(o, s, 0, W, &all, n);
}

#ifdef __AVX512F__
// Sixteen neighbouring segments: the next value of v where bits has a one, else zero.
SEG_INLINE void expand(float* out, d8 sums, u32 bits) {
  const f8 v = __builtin_convertvector(sums, f8);
  const f16 w = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  store(out, (f16)__builtin_ia32_expandsf512_mask(w, f16{}, (u16)bits));
}
SEG_INLINE void expand(i32* out, d8 counts, u32 bits) {
  const i8 v = __builtin_convertvector(counts, i8);
  const i16 w = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  store(out, (i16)__builtin_ia32_expandsi512_mask(w, i16{}, (u16)bits));
}
SEG_INLINE void expand(double* out, d8 v, u32 bits) {
  const l8 k = l8{0, 1, 2, 3, 4, 5, 6, 7} + (i64)__builtin_popcount(bits & 255);
  const d8 w = (d8)__builtin_ia32_permvardf512(v, k);
  store(out, (d8)__builtin_ia32_expanddf512_mask(v, d8{}, (u8)bits));
  store(out + 8, (d8)__builtin_ia32_expanddf512_mask(w, d8{}, (u8)(bits >> 8)));
}
#endif
// Stores the sums of `count` runs of segments origin + seg[r]. Segments below `mine` may be overwritten with zero if
// they have no run among these (later runs of this thread set them); mine = 0 forbids it.
template <class T>
SEG_INLINE void scatter8(T* out, i64 m, i64 mine, i64 origin, const i32* seg, d8 v, int count) {
  const i64 first = (i64)((u64)origin + (u64)(i64)seg[0]), span = (i64)seg[7] - seg[0];
  if (count == 8 && first >= 0 && span == 7 && first < m - 7) { store8(out + first, v); return; }
#ifdef __AVX512F__
  if (count == 8 && (u64)span < 16 && first >= 0 && first <= mine - 16) {
    const i8 s = load8(seg) - seg[0];
    expand(out + first, v, (u32)__builtin_reduce_or((i8{} + 1) << (s & 15)));
    return;
  }
#endif
  SEG_ALIGNED T r8[8];
  store8(r8, v);
  for (int r = 0; r < count; r++) {
    const i64 s = (i64)((u64)origin + (u64)(i64)seg[r]);
    if ((u64)s < (u64)m) out[s] = r8[r];
  }
}
template <class T>
SEG_NOINLINE void scatter8_apart(T* out, i64 m, i64 mine, i64 origin, const i32* seg, const d8* v, int count) {
  if (out) scatter8(out, m, mine, origin, seg, *v, count);
}
// Apart from the hot loops: with the plain sum in them alone, the whole table compiles in half the time.
template <class T, class V>
SEG_NOINLINE void finish8(const Out<T>& o, i64 mine, i64 origin, const i32* seg, const i32* size, const V* sums,
                          int count) {
  const d8 elements = o.elements(wide(load8(size))), value = finished(o.finish, *sums, elements), sum = plain_sum(*sums);
  scatter8_apart(o.value, o.m, mine, origin, seg, &value, count);
  scatter8_apart(o.raw, o.m, mine, origin, seg, &sum, count);
  const d8 inv = encoded<kept<T>>(inverse(value, elements));
  scatter8_apart(o.inv, o.m, mine, origin, seg, &inv, count);
  scatter8_apart(o.wide, o.m, mine, origin, seg, &sum, count);
  scatter8_apart(o.counts, o.m, mine, origin, seg, &elements, count);
}
template <class T, class V>
SEG_INLINE void put8(const Out<T>& o, i64 mine, i64 origin, const i32* seg, const i32* size, V sums, int count) {
  if (o.plain()) {
    const d8 value = o.finish == SUM ? plain_sum(sums) : finished(o.finish, sums, o.elements(wide(load8(size))));
    scatter8(o.value, o.m, mine, origin, seg, value, count);
  } else {
    finish8(o, mine, origin, seg, size, &sums, count);
  }
}
}}  // namespace seg
