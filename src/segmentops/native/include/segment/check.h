// Is idx sorted, and inside [0, m)? One vector comparison per element; where it went wrong is only looked for after.
#pragma once
#include "runs.h"
#include "threads.h"

namespace seg { namespace {

template <class I> bool descends(const I* p, i64 b, i64 e) {   // somewhere in [b, e), b > 0
  typedef I v8 __attribute__((vector_size(8 * sizeof(I))));
  typedef v8 flags;
  flags bad = {};
  i64 i = b;
  for (; i + 8 <= e; i += 8) bad |= (flags)(load<v8>(p + i) < load<v8>(p + i - 1));
  bool any = __builtin_reduce_or(bad) != 0;
  for (; i < e; i++) any |= p[i] < p[i - 1];
  return any;
}
bool descends(const Index& idx, i64 n, int threads) {
  if (threads > MAXTHREADS) threads = MAXTHREADS;
  bool bad[MAXTHREADS];
  parallel(threads, [&](int rank) {
    const i64 b = max(1, share(n, threads, rank)), e = share(n, threads, rank + 1);
    bad[rank] = idx.wide ? descends((const i64*)idx.p, b, e) : descends((const i32*)idx.p, b, e);
  });
  bool any = false;
  for (int r = 0; r < threads; r++) any |= bad[r];
  return any;
}
bool descends(const Index& idx, i64 n, i64 step, int threads) {   // step: bytes from one element to the next
  if (step == (idx.wide ? 8 : 4)) return descends(idx, n, threads);
  const auto at = [&](i64 i) { return Index{(const char*)idx.p + i * step, idx.wide}[0]; };
  for (i64 i = 1; i < n; i++)
    if (at(i) < at(i - 1)) return true;
  return false;
}
// The first element outside [0, m), else the first that is smaller than its predecessor; -1 if there is none.
// m < 0: no upper bound.
i64 first_offence(const Index& idx, i64 n, i64 m, int threads) {
  if (n == 0) return -1;
  if (!descends(idx, n, threads) && idx[0] >= 0 && (m < 0 || idx[n - 1] < m)) return -1;
  for (i64 i = 0; i < n; i++)
    if (idx[i] < 0 || (m >= 0 && idx[i] >= m)) return i;
  for (i64 i = 1; i < n; i++)
    if (idx[i] < idx[i - 1]) return i;
  return -1;
}
}}  // namespace seg
