// Where the segments of a sorted idx begin and end.
//
// idx is int32 or int64, told apart at run time: only the two functions that read it in bulk have an instance for
// each width. They hand out int32 numbers relative to an origin (0 for int32 idx, a nearby segment for int64), so
// that all heavy code exists once, and nobody pays a pass that narrows idx. Nothing here trusts idx to be sorted
// or in range: what it returns then is meaningless, but always inside the array.
#pragma once
#include "vector.h"

namespace seg { namespace {

struct Index {
  const void* p;
  bool wide;
  i64 operator[](i64 i) const { return wide ? ((const i64*)p)[i] : ((const i32*)p)[i]; }
};

// First position in [i, n) whose value is not s, given idx[i - 1] == s: gallop, then bisect.
i64 run_end(const Index& idx, i64 i, i64 n, i64 s) {
  i64 step = 64, lo = i - 1;
  while (lo + step < n && idx[lo + step] == s) { lo += step; step *= 2; }
  i64 hi = min(lo + step, n);
  while (hi - lo > 1) {
    const i64 mid = lo + (hi - lo) / 2;
    if (idx[mid] == s) lo = mid; else hi = mid;
  }
  return hi;
}
i64 run_start(const Index& idx, i64 i, i64 s) {   // given idx[i] == s
  i64 step = 64, hi = i;
  while (hi - step >= 0 && idx[hi - step] == s) { hi -= step; step *= 2; }
  i64 lo = max(hi - step, -1);
  while (hi - lo > 1) {
    const i64 mid = lo + (hi - lo) / 2;
    if (idx[mid] == s) hi = mid; else lo = mid;
  }
  return hi;
}

constexpr int CHUNK = 16384;     // run starts are listed for this many elements at a time,
constexpr int RUNS = 512;        // or for about this many runs: a list costs several mispredicted loop exits

// The runs among the elements from `base` on: where each starts (counted from base), how long it is, whose it is
// (segment origin + seg). A list of k runs has k + 1 starts. The slack is for whole vectors.
struct Runs {
  i64 base, origin;
  SEG_ALIGNED u32 start[RUNS + 64];
  SEG_ALIGNED i32 size[RUNS + 64], seg[RUNS + 64];
};

// Sixteen segment numbers less the origin; false if they do not fit into int32.
SEG_INLINE bool relative(const i32* p, i64, i16& s) { s = load<i16>(p); return true; }
SEG_INLINE bool relative(const i64* p, i64 origin, i16& s) {
  const l8 a = load<l8>(p) - origin, b = load<l8>(p + 8) - origin;
  const i8 x = __builtin_convertvector(a, i8), y = __builtin_convertvector(b, i8);
  s = __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const l8 lost = (__builtin_convertvector(x, l8) ^ a) | (__builtin_convertvector(y, l8) ^ b);
  return __builtin_reduce_or(lost) == 0;
}
SEG_INLINE bool relative(i64 p, i64 origin, i32& s) {
  s = (i32)((u64)p - (u64)origin);
  return (u64)(i64)s == (u64)p - (u64)origin;
}
SEG_INLINE i16 changes(const i32* p) { return load<i16>(p) != load<i16>(p - 1); }
SEG_INLINE i16 changes(const i64* p) {
  const i8 x = __builtin_convertvector(load<l8>(p) != load<l8>(p - 1), i8);
  const i8 y = __builtin_convertvector(load<l8>(p + 8) != load<l8>(p + 7), i8);
  return __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
template <class I> int find_runs(const I* idx, i64& i, i64 e, Runs& r) {
  int k = 1;
  i16 pos = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, seg;
  pos += (i32)(i - r.base);
  for (; i + 16 <= e && k < RUNS; i += 16, pos += 16) {
    const u16 bits = bitmask(changes(idx + i));
    if (!bits) continue;
    if (!relative(idx + i, r.origin, seg)) break;
    pack(r.start + k, pos, bits);
    pack(r.seg + k, seg, bits);
    k += __builtin_popcount(bits);
  }
  for (; i < e && k < RUNS; i++) {
    if (idx[i] == idx[i - 1]) continue;
    if (!relative(idx[i], r.origin, r.seg[k])) break;
    r.start[k++] = (u32)(i - r.base);
  }
  return k;
}
// Lists the runs that begin in [p, e) and returns their number, at least one. The end of the last one is not known
// yet; there is no run start between it and `scanned`.
SEG_INLINE int find_runs(const Index& idx, i64 p, i64 e, Runs& r, i64& scanned) {
  r.base = p;
  r.origin = idx.wide ? idx[p] : 0;
  r.start[0] = 0;
  r.seg[0] = (i32)(idx[p] - r.origin);
  scanned = p + 1;
  return idx.wide ? find_runs((const i64*)idx.p, scanned, e, r) : find_runs((const i32*)idx.p, scanned, e, r);
}

// Calls f(s, origin, b, c) for stretches [b, c) that make up [b, e): origin + s[i - b] is the segment of i.
template <class F> SEG_INLINE void stretches(const Index& idx, i64 b, i64 e, const F& f) {
  constexpr i64 LENGTH = 256;
  SEG_ALIGNED i32 narrow[LENGTH];
  while (b < e) {
    const i32* s = (const i32*)idx.p + b;
    i64 origin = 0, c = e;
    if (idx.wide) {
      const i64* const from = (const i64*)idx.p + b;
      origin = from[0];
      s = narrow;
      c = min(e, b + LENGTH);
      for (bool fit = false; !fit;) {         // half as many, if they are too far apart; one always fits
        fit = true;
        for (i64 i = 0; i < c - b; i++) fit &= relative(from[i], origin, narrow[i]);
        if (!fit) c = b + (c - b) / 2;
      }
    }
    f(s, origin, b, c);
    b = c;
  }
}
}}  // namespace seg
