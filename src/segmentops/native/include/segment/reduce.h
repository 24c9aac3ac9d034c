// The loop over runs that every reduction shares, and how threads share it.
//
// Threads split the elements evenly. A run belongs to the thread in which it starts; of a run longer than one super,
// each thread takes the supers that begin in its share, and the caller joins them in order. So neither the number of
// threads nor where a segment lies can change its bits.
//
// A Reduction is a handful of functions: the loop is compiled once, and an indirect call is paid for a list of
// hundreds of runs. Its hooks are per-element loops that run over the elements of a list as soon as its runs have
// been summed, while the data is still in the cache: that is how a fused operation makes a reduction and per-element
// outputs in one pass, with the same code, hence the same bits, as when each is asked for alone.
#pragma once
#include "call.h"
#include "rule.h"

namespace seg { namespace {

constexpr int LONG = 256;                     // a run at least this long skips the list
constexpr i64 PARTIALS = 1 << 19;             // bytes

// A per-element loop: what a thread does with the elements [b, e).
struct Each {
  void (*run)(const Each*, i64 b, i64 e, char* work);
  Index idx;
  i64 m;
  Pieces pieces;                              // of copies, in `work`
};

struct Reduction {
  Index idx;
  i64 n, m;
  i64 items;                                  // items per element (the rule counts items)
  // k listed runs; segments below `mine` that have none are this thread's to overwrite with zero.
  void (*list)(const Reduction*, Runs&, int k, i64 mine, char* work);
  // One super: `count` items from item `first` of the data on.
  void (*super)(const Reduction*, i64 first, i64 count, void* part, char* work);
  // The supers of a segment of n items, in order.
  void (*join)(const Reduction*, const void* parts, i64 n, i64 s);
  void (*zeros)(const Reduction*, i64 a, i64 b);
  i64 part_bytes;                             // of what `super` writes
  i64 work_bytes = 0;                         // of `work`, which each thread has for itself
  i64 most_listed = CHUNK;                    // elements among which runs are listed
  i64 partials = PARTIALS;                    // bytes of scratch for supers of runs that cross threads, at most
  const Each* hooks[2];
};

// Of a segment of at most n items.
SEG_INLINE i64 most_supers(i64 n) { return min(MAXSUPER, n / SUPER + 1); }

// Supers first, first + 1, ... of the run of n elements from p on, those that begin before element `stop`.
void supers(const Reduction& r, i64 p, i64 n, i64 from, i64 stop, char* parts, char* work) {
  const i64 count = n * r.items, size = super_size(count);
  const i64 limit = min((stop - p) * r.items, count), first = from == p ? 0 : ((from - p) * r.items + size - 1) / size;
  for (i64 k = first; k * size < limit; k++)
    r.super(&r, p * r.items + k * size, min(count - k * size, size), parts + k * r.part_bytes, work);
}
SEG_INLINE void run_hooks(const Reduction& r, i64 b, i64 e, char* work) {
  for (const Each* h : r.hooks)
    if (h && b < e) h->run(h, b, e, work);
}
// The first segment that comes after s.
SEG_INLINE i64 after(i64 s, i64 m) { return s < 0 ? 0 : s < m ? s + 1 : m; }

// A run that begins in one thread's share and ends in another's, in supers.
struct Crossing { i64 n, s; };

// `own`: `slots` bytes for the supers of a run, then what the reduction works with.
void reduce_share(const Reduction& r, int rank, int threads, Crossing* crossing, char* shared, char* own, i64 slots) {
  const Index idx = r.idx;
  const i64 n = r.n, m = r.m, b = share(n, threads, rank), e = share(n, threads, rank + 1);
  crossing[rank].n = 0;
  if (b == e) return;
  char* const work = own + slots;
  i64 p = b, next = 0;                        // next: the first segment not written yet
  if (b > 0) {
    const i64 s = idx[b];
    next = after(idx[b - 1], m);
    if (s == idx[b - 1]) {                    // a run from an earlier thread: help
      p = run_end(idx, b + 1, n, s);
      const i64 start = run_start(idx, b - 1, s), items = (p - start) * r.items;
      if (items > super_size(items)) {
        int owner = rank;
        while (share(n, threads, owner) > start) owner--;
        supers(r, start, p - start, b, e, shared + owner * slots, work);
      }
      run_hooks(r, b, min(p, e), work);
    }
  }
  const i64 mine = after(idx[e - 1], m), longest = max(1, (1 << 30) / r.items);
  Runs runs;
  while (p < e) {
    const i64 s = idx[p];
    i64 end = p;
    int k = 0;
    if (p + LONG < n && idx[p + LONG] == s) {
      end = run_end(idx, p + LONG + 1, n, s);
    } else {
      i64 scanned;
      k = find_runs(idx, p, min(p + min(r.most_listed, longest), e), runs, scanned) - 1;   // the last one may go on
      end = k ? p + runs.start[k] : run_end(idx, scanned, n, s);
    }
    const i64 last = k ? (i64)((u64)runs.origin + (u64)(i64)runs.seg[k - 1]) : s, then = after(last, m);
    if (then > next) {
      if (s != next || last - s + 1 != max(k, 1)) r.zeros(&r, next, then);   // not one run a segment
      next = then;
    }
    if (k) {
      for (int g = 0; g < k; g += 16) {       // from elements to items
        const i16 a = load<i16>((i32*)runs.start + g) * (i32)r.items;
        store(runs.size + g, load<i16>((i32*)runs.start + g + 1) * (i32)r.items - a);
        if (r.items > 1) store((i32*)runs.start + g, a);   // start[g + 16] is read again, as the next a
      }
      r.list(&r, runs, k, mine, work);
    } else if (end > e && (end - p) * r.items > super_size((end - p) * r.items)) {
      supers(r, p, end - p, p, e, shared + rank * slots, work);
      crossing[rank] = {end - p, s};
    } else {
      supers(r, p, end - p, p, end, own, work);
      r.join(&r, own, (end - p) * r.items, s);
    }
    run_hooks(r, p, min(end, e), work);
    p = end;
  }
  if (e == n && next < m) r.zeros(&r, next, m);
}

i64 reduce(const Reduction& r, int threads) {
  if (r.n == 0 || r.items == 0) { if (r.m > 0) r.zeros(&r, 0, r.m); return -1; }
  const i64 slots = lines(r.part_bytes * most_supers(r.n * r.items));
  i64 own = r.work_bytes;
  for (const Each* h : r.hooks)
    if (h) own = max(own, h->pieces.bytes);
  own = slots + lines(own);
  threads = (int)max(1, min(min(threads, MAXTHREADS), min(r.n, r.partials / slots)));
  Crossing crossing[MAXTHREADS];
  const i64 crossings = threads > 1 ? slots * threads : 0;
  const Scratch scratch(crossings + own * threads);
  char* const shared = scratch.p;
  if (!shared) return NO_MEMORY;
  parallel(threads, [&](int rank) {
    reduce_share(r, rank, threads, crossing, shared, shared + crossings + rank * own, slots);
  });
  for (int t = 0; t < threads; t++)
    if (crossing[t].n) r.join(&r, shared + t * slots, crossing[t].n * r.items, crossing[t].s);
  return -1;
}
// The same sharing for a per-element loop over n elements.
i64 each(const Each& loop, i64 n, int threads) {
  threads = (int)max(1, min(min(threads, MAXTHREADS), n));
  const i64 own = lines(loop.pieces.bytes);
  const Scratch scratch(own * threads);
  if (!scratch.p) return NO_MEMORY;
  parallel(threads, [&](int rank) {
    const i64 b = share(n, threads, rank), e = share(n, threads, rank + 1);
    if (b < e) loop.run(&loop, b, e, scratch.p + rank * own);
  });
  return -1;
}
}}  // namespace seg
