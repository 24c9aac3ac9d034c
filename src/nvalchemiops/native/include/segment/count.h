// Reductions without data: f(s, elements) for every run. How many elements a segment has is all they know.
#pragma once
#include "reduce.h"

namespace seg { namespace {

template <class F, class Z> struct Lengths : Reduction {
  F f;                                        // segments inside [0, m) only
  Z clear;                                    // clear(a, b): segments a .. b - 1 are empty
  Lengths(Index idx, i64 n, i64 m, const F& f, const Z& clear) : f(f), clear(clear) {
    this->idx = idx;
    this->n = n;
    this->m = m;
    items = 1;
    part_bytes = 1;
    hooks[0] = hooks[1] = nullptr;
    list = [](const Reduction* r, Runs& runs, int k, i64) {
      for (int i = 0; i < k; i++) {
        const u64 s = (u64)runs.origin + (u64)(i64)runs.seg[i];
        if (s < (u64)r->m) ((const Lengths*)r)->f((i64)s, runs.size[i]);
      }
    };
    super = [](const Reduction*, i64, i64, void*) {};
    join = [](const Reduction* r, const void*, i64 n, i64 s) {
      if ((u64)s < (u64)r->m) ((const Lengths*)r)->f(s, n);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) { ((const Lengths*)r)->clear(a, b); };
  }
};
}}  // namespace seg
