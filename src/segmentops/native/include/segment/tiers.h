// Reductions of W = 1 (read flat) and W = 3: lists of short runs, summed without a branch for each.
//
// What short runs cost is mispredicted branches, not arithmetic. So a whole list of some hundred runs is summed by
// the same code: a tier, which reads the same number of rows for each and masks what a run does not have. The tier
// that is cheapest for the list goes first; runs that are longer are packed together and the choice is made again. (A
// run of a list can be as long as a chunk: only the first one is looked at before the list is made.)
#pragma once
#include "output.h"
#include "reduce.h"

namespace seg { namespace {
#pragma clang fp contract(off)

// The lane tree of the rule for eight rows of W = 1 at once: a transpose that adds as it goes.
template <class V, class Plus> SEG_INLINE V fold8(const V* h, const Plus& plus) {
  V a[4], b[2];
  for (int r = 0; r < 4; r++)
    a[r] = plus(shuffle<0, 8, 2, 10, 4, 12, 6, 14>(h[2 * r], h[2 * r + 1]),
                shuffle<1, 9, 3, 11, 5, 13, 7, 15>(h[2 * r], h[2 * r + 1]));
  for (int r = 0; r < 2; r++)
    b[r] = plus(shuffle<0, 1, 8, 9, 4, 5, 12, 13>(a[2 * r], a[2 * r + 1]),
                shuffle<2, 3, 10, 11, 6, 7, 14, 15>(a[2 * r], a[2 * r + 1]));
  return plus(shuffle<0, 1, 2, 3, 8, 9, 10, 11>(b[0], b[1]), shuffle<4, 5, 6, 7, 12, 13, 14, 15>(b[0], b[1]));
}
template <class Plus> SEG_INLINE auto fold4(const d4* h, const Plus& plus) {   // rows whose last four lanes are missing
  decltype(plus(h[0], h[0])) a[4], b[2];
  for (int r = 0; r < 4; r++)
    a[r] = plus(shuffle<0, 4, 2, 6>(h[2 * r], h[2 * r + 1]), shuffle<1, 5, 3, 7>(h[2 * r], h[2 * r + 1]));
  for (int r = 0; r < 2; r++)
    b[r] = plus(shuffle<0, 1, 4, 5>(a[2 * r], a[2 * r + 1]), shuffle<2, 3, 6, 7>(a[2 * r], a[2 * r + 1]));
  return shuffle<0, 1, 2, 3, 4, 5, 6, 7>(b[0], b[1]);
}

// Tier c sums runs of at most CAPS[c] items without looking at how long each is. Longer runs get some value, too; a
// later tier overwrites it.
constexpr int TIERS = 6;
constexpr int CAPS[TIERS] = {4, 8, 16, 32, 64, 128};

// Puts run i of a list.
template <int W, class T, class V> SEG_INLINE void put_run(const Out<T>& out, const Runs& r, int i, V sum) {
  put<W>(out, (i64)((u64)r.origin + (u64)(i64)r.seg[i]), sum, r.size[i]);
}
template <int W, int C, class Term, class T>
SEG_NOINLINE void tier(const Term& t, const Runs& r, int k, const Out<T>& out, i64 mine, i64 flat) {
  constexpr int R = C ? 1 << (C - 1) : 1;     // rows
  // Runs near the end of the data, where a whole vector cannot be read, come last, one at a time.
  const int all = k;
  const bool plain = out.plain();             // in registers: a store might change what is read through `out`
  const Finish finish = out.finish;
  T* const value = out.value;
  const i64 m = out.m, origin = r.origin;
  const typename Kind<Term>::plus plus;
  const auto save = [&](int i, Sums<Term> sum) {
    const i64 s = (i64)((u64)origin + (u64)(i64)r.seg[i]);
    if (!plain) { put<W>(out, s, sum, r.size[i]); return; }
    const d4 v = finish == SUM ? plain_sum(sum) : finished(finish, sum, d4{} + out.elements((double)r.size[i]));
    put_plain<W>(value, m, s, v);
  };
  while (k > 0 && ((i64)r.start[k - 1] + CAPS[C]) * W + 8 * W > flat) k--;
  if (k < all) k &= ~7;                       // a group is padded only where the padding is harmless
  if constexpr (W == 1) {
    for (int g = 0; g < k; g += 8) {
      Lane<Term> c;
      if constexpr (C == 0) {
        d4 h[8];
#pragma clang loop unroll(full)
        for (int i = 0; i < 8; i++) h[i] = t.at4(r.start[g + i], i4{} + r.size[g + i]);
        c = handed_on(fold4(h, plus));
      } else if constexpr (R <= 8) {
        Lane<Term> h[8];
#pragma clang loop unroll(full)
        for (int i = 0; i < 8; i++) rows<1, R>(t, r.start[g + i], i8{} + r.size[g + i], &h[i]);
        c = handed_on(fold8(h, plus));
      } else {
        Lane<Term> h[8], l[8];
        for (int i = 0; i < 8; i++) {
          Lane<Term> v;
          rows<1, 8>(t, r.start[g + i], i8{} + r.size[g + i], &h[i]);
          rows<1, 8>(t, r.start[g + i] + BLOCK, i8{} + (r.size[g + i] - BLOCK), &v);
          l[i] = {};
          accumulate<typename Term::scalar>(h[i], l[i], v);
        }
        if constexpr (__is_same(Lane<Term>, d8) && Compensated<typename Term::scalar>::yes)
          c = total(fold8(h, plus), fold8(l, plus));
        else
          c = handed_on(fold8(h, plus));
      }
      put8(out, mine, r.origin, r.seg + g, r.size + g, c, k - g < 8 ? k - g : 8);
    }
  } else if constexpr (C == 0) {
    for (int i = 0; i < k; i++) {
      const i64 p = (i64)r.start[i] * W;
      const i8 n = i8{} + r.size[i] * W;
      const auto s0 = t.at(p, 0, n), s1 = t.at(p + 8, 8, n);
      save(i, handed_on(lanes3(s0, shuffle<0, 1, 2, 3>(s1, s1), plus)));
    }
  } else if constexpr (R <= 8) {
    for (int i = 0; i < k; i++) {
      Lane<Term> h[W];
      rows<W, R>(t, (i64)r.start[i] * W, i8{} + r.size[i] * W, h);
      save(i, handed_on(lanes<W>(h, plus)));
    }
  }
  for (; k < all; k++)
    if (r.size[k] <= CAPS[C]) save(k, segment<W>(t, (i64)r.start[k] * W, r.size[k], flat));
}
// All runs of a list: the tier that is cheapest for most of them, then the same for what is left.
template <int W, class Term, class T>
void short_runs(const Term& t, Runs& r, int k, const Out<T>& out, i64 mine, i64 flat) {
  constexpr int tiers = W == 1 ? 6 : 5;
  constexpr int cost[TIERS + 1] = {2, 4, 8, 16, 30, 44, 90};
  for (;;) {
    for (int i = 0; i < 16; i++) { r.start[k + i] = r.start[k - 1]; r.size[k + i] = 0; r.seg[k + i] = 0; }
    i16 over[TIERS] = {};
    for (int g = 0; g < k; g += 16) {
      const i16 n = load<i16>(r.size + g);
      for (int c = 0; c < tiers; c++) over[c] -= (n > CAPS[c]);
    }
    int best = tiers, left = 0, longer = 0, rest = 0, price = 1 << 30;
    for (int c = tiers; c >= 0; c--) {        // rest: what those longer than CAPS[c] will cost
      const int o = c == tiers ? 0 : __builtin_reduce_add(over[c]);
      rest += (o - longer) * (cost[c + 1 < tiers ? c + 1 : TIERS] + 6);
      longer = o;
      const int now = k * cost[c == tiers ? TIERS : c] + rest;
      if (now < price && o < k) { best = c; price = now; left = o; }
    }
    switch (best) {
      case 0: tier<W, 0>(t, r, k, out, mine, flat); break;
      case 1: tier<W, 1>(t, r, k, out, mine, flat); break;
      case 2: tier<W, 2>(t, r, k, out, mine, flat); break;
      case 3: tier<W, 3>(t, r, k, out, mine, flat); break;
      case 4: tier<W, 4>(t, r, k, out, mine, flat); break;
      case 5: if constexpr (W == 1) { tier<W, 5>(t, r, k, out, mine, flat); break; }
      default:
        for (int i = 0; i < k; i++)
          put_run<W>(out, r, i, segment<W>(t, (i64)r.start[i] * W, r.size[i], flat));
    }
    if (!left) return;
    int to = 0;
    for (int g = 0; g < k; g += 16) {
      const i16 n = load<i16>(r.size + g), p = load<i16>((i32*)r.start + g), s = load<i16>(r.seg + g);
      const u16 bits = bitmask(n > CAPS[best]);
      pack(r.size + to, n, bits);
      pack(r.start + to, p, bits);
      pack(r.seg + to, s, bits);
      to += __builtin_popcount(bits);
    }
    k = to;
    mine = 0;
  }
}

template <int W, class Term, class T> struct Flat : Reduction {
  Term t;
  Out<T> out;
  static const Flat& of(const Reduction* r) { return *(const Flat*)r; }

  Flat(const Call& call, i64 n, i64 k, Term term, const Out<T>& to) {
    idx = call.idx;
    this->n = n;
    m = to.m;
    items = k;
    part_bytes = sizeof(Pair<d4>);
    hooks[0] = hooks[1] = nullptr;
    t = term;
    out = to;
    out.items = k;
    list = [](const Reduction* r, Runs& runs, int k, i64 mine, char*) {
      const i64 p = runs.base * r->items * W;
      short_runs<W>(of(r).t.from(p), runs, k, of(r).out, mine, r->n * r->items * W - p);
    };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char*) {
      *(Pair<d4>*)part = seg::super<W>(of(r).t, first * W, count, r->n * r->items * W);
    };
    join = [](const Reduction* r, const void* parts, i64 n, i64 s) {
      put<W>(of(r).out, s, total<Term>((const Pair<d4>*)parts, super_count(n)), n);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) { seg::zeros(of(r).out, a, b); };
    if (call.strided) by_copies();
  }
  static Term copied(Term t, i64 first, i64 count, char* work) {
    Copies copies = {work};
    t.operands([&](auto& x) { copies.flat(x, first, count); });
    return t;
  }
  void by_copies() {
    most_listed = min(CHUNK, max(1, PIECE / max(1, items * W)));
    work_bytes = Term::OPERANDS * lines(PIECE * (i64)sizeof(typename Term::scalar));
    list = [](const Reduction* r, Runs& runs, int k, i64 mine, char* work) {
      const i64 count = ((i64)runs.start[k - 1] + runs.size[k - 1]) * W;
      short_runs<W>(copied(of(r).t, runs.base * r->items * W, count, work), runs, k, of(r).out, mine, count);
    };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char* work) {
      constexpr i64 ITEMS = PIECE / W / BLOCK * BLOCK;
      Lane<Term> hi[W], lo[W];
      for (i64 i = 0; i < count; i += ITEMS) {
        const i64 n = min(ITEMS, count - i);
        add_blocks<W>(copied(of(r).t, (first + i) * W, n * W, work), 0, n, n * W, i > 0, hi, lo);
      }
      *(Pair<d4>*)part = folded<W>(hi, lo);
    };
  }
};
}}  // namespace seg
