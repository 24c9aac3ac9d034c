// How every exported function begins: `mode` taken apart, and idx checked where that is asked for.
// bit 0: idx is int64; bit 1: check idx; bit 2: argmax arrays are int32; bit 3: operands are `Strided` (strided.h); from
// bit 8 on: threads.
#pragma once
#include "builtin.h"
#include "check.h"
#include "strided.h"

namespace seg { namespace {

struct Call {
  Index idx;
  int threads;
  bool narrow_at, strided;
  i64 offence;                                // the position of the first bad element, -1: none
  Call(const void* p, i64 n, i64 m, i64 mode)
      : idx{p, (mode & 1) != 0}, threads((int)max(1, mode >> 8)), narrow_at((mode & 4) != 0),
        strided((mode & STRIDED) != 0), offence(-1) {
    if (mode & 2) offence = first_offence(idx, n, m, threads);
  }
  Call plain() const {                        // for arrays that have no strides
    Call c = *this;
    c.strided = false;
    return c;
  }
};
}}  // namespace seg
