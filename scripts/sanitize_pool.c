// What libgomp does for the engine, on plain threads: the sanitizers understand these.
//
// As GOMP_parallel may, it brings fewer threads than were asked for: each call another number.
#include <pthread.h>

struct job { void (*run)(void*); void* data; int rank, size; };
static _Thread_local int rank_here = 0, size_here = 1;
static unsigned calls;

static void* work(void* p) {
  const struct job* job = p;
  rank_here = job->rank;
  size_here = job->size;
  job->run(job->data);
  rank_here = 0;
  size_here = 1;
  return 0;
}
void pool_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags) {
  const unsigned call = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
  const int size = call % 2 ? (int)threads : 1 + (int)(call / 2 % threads);
  struct job jobs[threads];
  pthread_t ids[threads];
  for (int r = size - 1; r >= 0; r--) {
    jobs[r] = (struct job){run, data, r, size};
    if (r == 0) work(&jobs[0]);
    else if (pthread_create(&ids[r], 0, work, &jobs[r])) __builtin_trap();
  }
  for (int r = 1; r < size; r++) pthread_join(ids[r], 0);
}
int pool_rank(void) { return rank_here; }
int pool_size(void) { return size_here; }
