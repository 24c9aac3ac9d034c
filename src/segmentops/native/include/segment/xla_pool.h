// The engine's `parallel` on the threads of the XLA program that runs.
//
// XLA lends no threads, it takes tasks; they may run late, one after the other, or in the calling thread, so nobody may
// wait for one to begin. The shares of a job are handed out by a counter: whoever comes takes the next one, the
// caller too, until there are none; then the caller waits for those that others have begun. A task that comes later
// finds another job number, and goes.
//
// There is one job at a time. A handler that runs beside it does its work alone, on the thread that it was given, so
// no call ever waits for another one's job. Which thread takes which share changes no bit.
#pragma once
#define parallel openmp_parallel              // the one in threads.h; this file defines its own
#include "threads.h"
#undef parallel
#include "xla_ffi.h"

namespace seg { namespace xla { namespace {

struct Job {
  u64 state;                                  // number of the job << 16 | next share << 8 | shares
  i64 done;
  void (*run)(const void* body, int share);
  const void* body;
  const Api* api;
  Context* context;
};
Job job;
bool taken;                                   // by a handler

// XLA's threads take subnormal numbers for zero. The rule does not: what it keeps for a derivative may be one,
// 1 / (out count) of a long segment with large numbers.
struct WithSubnormals {
#if defined(__x86_64__)
  static constexpr u32 FLUSH = 1 << 15 | 1 << 6;   // results, operands
  const u32 before = __builtin_ia32_stmxcsr();
  WithSubnormals() { __builtin_ia32_ldmxcsr(before & ~FLUSH); }
  ~WithSubnormals() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
  static constexpr u64 FLUSH = 1 << 24;
  const u64 before = __builtin_arm_rsr64("fpcr");
  WithSubnormals() { __builtin_arm_wsr64("fpcr", before & ~FLUSH); }
  ~WithSubnormals() { __builtin_arm_wsr64("fpcr", before); }
#endif
};

template <class T> SEG_INLINE T get(const T& at) { return __atomic_load_n(&at, __ATOMIC_SEQ_CST); }

// Takes shares of job `number` until there are none.
void work(u64 number) {
  for (;;) {
    u64 state = get(job.state);
    const int share = (int)(state >> 8 & 255), shares = (int)(state & 255);
    if (state >> 16 != number || share >= shares) return;
    if (!__atomic_compare_exchange_n(&job.state, &state, state + 256, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
    job.run(job.body, share);                 // not over before this share is done
    __atomic_add_fetch(&job.done, 1, __ATOMIC_SEQ_CST);
  }
}
void task(void* number) {
  const WithSubnormals scope;
  work((u64)number);
}

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

// Whether the calling handler may use other threads; then it must call `release`.
bool acquire(const Frame* f) {
  if (__atomic_exchange_n(&taken, true, __ATOMIC_SEQ_CST)) return false;
  job.api = f->api;
  job.context = f->context;
  return true;
}
void release() { __atomic_store_n(&taken, false, __ATOMIC_SEQ_CST); }

i64 thread_count(const Frame* f) {
  i64 threads = 1;
  NumThreadsArgs ask = {sizeof(ask), nullptr, f->context, &threads};
  if (Error* e = f->api->num_threads(&ask)) {
    DestroyArgs destroy = {sizeof(destroy), nullptr, e};
    f->api->error_destroy(&destroy);
    return 1;
  }
  return min(threads, MAXTHREADS);
}
}}  // namespace xla

namespace {
// body(r) for each r below threads; called with more than one by the handler that holds the job.
template <class Body> void parallel(int threads, const Body& body) {
  if (threads <= 1) { if (threads == 1) body(0); return; }
  using xla::job;
  job.run = [](const void* b, int share) { (*(const Body*)b)(share); };
  job.body = &body;
  job.done = 0;
  const u64 number = (xla::get(job.state) >> 16) + 1 & (~(u64)0 >> 16);
  __atomic_store_n(&job.state, number << 16 | (u64)threads, __ATOMIC_SEQ_CST);
  for (int t = 1; t < threads; t++) {
    xla::ScheduleArgs args = {sizeof(args), nullptr, job.context, xla::task, (void*)number};
    if (xla::Error* e = job.api->schedule(&args)) {   // no pool: the caller does it all
      xla::DestroyArgs destroy = {sizeof(destroy), nullptr, e};
      job.api->error_destroy(&destroy);
      break;
    }
  }
  xla::work(number);
  while (xla::get(job.done) < threads) xla::pause();
}
}}  // namespace seg
