// Large pages for large results.
//
// The kernel provides fresh memory when it is first written, page by page, which takes several times as long as the
// writing. So what is about to be written is asked for in large pages (2 MiB, where Linux has transparent huge pages).
#pragma once
#include "vector.h"

namespace seg { namespace {

typedef int (*madvise_t)(void* address, u64 size, int advice);
madvise_t madvise_at;                         // null where the system has none
i64 pages(madvise_t function) { madvise_at = function; return -1; }

// From this size on memory is fresh as a rule: glibc maps it anew (DEFAULT_MMAP_THRESHOLD_MAX) and gives it back when
// it is freed, so that nobody inherits the advice.
constexpr u64 LARGE = 32 << 20;
constexpr u64 PAGE = 64 << 10;                // the largest ordinary one
constexpr int MADV_HUGEPAGE = 14;

SEG_INLINE void prefer_large_pages(void* p, u64 bytes) {
  if (bytes < LARGE || !madvise_at) return;
  const u64 first = ((u64)p + PAGE - 1) / PAGE * PAGE, last = ((u64)p + bytes) / PAGE * PAGE;
  madvise_at((void*)first, last - first, MADV_HUGEPAGE);      // advice: nothing depends on the answer
}
}}  // namespace seg
