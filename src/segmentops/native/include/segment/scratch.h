// Scratch of a call. Threads may have little stack (128 KiB with musl), so what is not small comes from the heap of the
// C library, whose functions are handed in by address, once. It is asked for before any thread begins, so that there is
// one place where it can fail; the caller of the engine then learns of it.
#pragma once
#include "vector.h"

namespace seg { namespace {

typedef void* (*malloc_t)(u64 size);
typedef void (*free_t)(void* memory);
malloc_t malloc_at;
free_t free_at;
i64 heap(malloc_t allocate, free_t release) {
  malloc_at = allocate;
  free_at = release;
  return -1;
}

constexpr i64 NO_MEMORY = -2;                 // what a function returns then
constexpr i64 SMALL = 16 << 10;
constexpr i64 LINE = 64;                      // bytes; nothing here needs a larger alignment

SEG_INLINE i64 lines(i64 bytes) { return (bytes + LINE - 1) / LINE * LINE; }

struct Scratch {
  alignas(LINE) char small[SMALL];
  void* heap = nullptr;
  char* p = small;                            // null: there is no memory
  explicit Scratch(i64 bytes) {
    if (bytes <= SMALL) return;
    heap = malloc_at ? malloc_at((u64)(bytes + LINE)) : nullptr;
    p = heap ? (char*)(((u64)heap + LINE - 1) / LINE * LINE) : nullptr;
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() { if (heap) free_at(heap); }
};
}}  // namespace seg
