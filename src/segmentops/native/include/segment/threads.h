// Sharing work between threads: on the OpenMP pool that the process already has.
//
// Warp's Clang has no OpenMP runtime; the addresses of GOMP_parallel and of the two queries are handed in once
// (`configure`), so the engine runs on torch's own threads instead of competing with them. Results never depend on
// how many threads really come: each takes every size()-th share.
#pragma once
#include "vector.h"

namespace seg { namespace {

constexpr int MAXTHREADS = 64;

typedef void (*parallel_t)(void (*)(void*), void*, unsigned, unsigned);
struct Pool {
  parallel_t parallel;
  int (*rank)();
  int (*size)();
};
Pool pool;

i64 configure(parallel_t parallel, int (*rank)(), int (*size)()) {
  pool = {parallel, rank, size};
  return -1;
}
// Where share r of n begins.
SEG_INLINE i64 share(i64 n, i64 threads, i64 r) { return n / threads * r + n % threads * r / threads; }

// body(r) for each r below threads.
template <class Body> void parallel(int threads, const Body& body) {
  if (threads <= 1 || !pool.parallel) {
    for (int r = 0; r < threads; r++) body(r);
    return;
  }
  struct Call { const Body* body; int threads; } call = {&body, threads};
  void (*entry)(void*) = [](void* p) {
    const Call* c = (const Call*)p;
    for (int r = pool.rank(); r < c->threads; r += pool.size()) (*c->body)(r);
  };
  pool.parallel(entry, &call, (unsigned)threads, 0);
}
}}  // namespace seg
