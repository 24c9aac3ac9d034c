// Reductions of any width: eight columns at a time, each by the W = 3 rule.
//
// With a vector of eight columns an item is one load, and lane e of a row is item e: no shuffles, at the price of
// eight accumulators. A term says which groups of eight columns there are; the last group of a wide row overlaps the
// one before it. The innermost loop goes over the groups: rows are read from left to right, those of one lane of a
// block (or of a short run) side by side, so one pass over the data serves every column. Of rows wider than a part,
// one part is done at a time; runs too long to be listed take a pass over the data for each part, and then a part may
// be smaller: the partial sums of runs that cross threads must not become too many.
#pragma once
#include "output.h"
#include "reduce.h"

namespace seg { namespace {
#pragma clang fp contract(off)

constexpr int GROUPS = 160;                   // in a part, at most

SEG_INLINE i64 groups_of(i64 k) { return (k + 7) / 8; }
// How many of n groups to a part, if at most so many are allowed and all parts shall be alike.
SEG_INLINE i64 even(i64 n, i64 most) {
  const i64 parts = (n + most - 1) / most;
  return (n + parts - 1) / parts;
}
SEG_INLINE i64 group_start(i64 k, i64 g) { return max(0, min(8 * g, k - 8)); }

// Only whole vectors are read. In rows of k < 8 they reach into the next rows; so the last rows of such data, at most
// a block, are copied to where this is allowed. `whole`: it is, for rows below `end` of n.
constexpr int PADDED = BLOCK * 8;
SEG_INLINE bool whole(i64 k, i64 end, i64 n) { return k >= 8 || (end - 1) * k + 8 <= n * k; }
// Row p of x (n, k), or of a copy of the `count` rows from there on.
template <class T> const T* padded(const T* x, i64 k, i64 p, i64 count, T* copy) {
  if (k >= 8) return x + p * k;
  __builtin_memcpy(copy, x + p * k, (u64)(count * k) * sizeof(T));
  return copy;
}

template <class T> struct ColumnSum {         // x (n, k)
  typedef T scalar;
  typedef i64 Group;                          // its first column
  const T* x;
  i64 n, k;
  i64 groups() const { return groups_of(k); }
  i64 first(i64 g) const { return group_start(k, g); }     // the group's first column of the output
  i64 count() const { return min(8, k); }                  // and how many it has
  Group group(i64 g) const { return first(g); }
  SEG_INLINE d8 at(i64 i, Group c) const { return wide(load8(x + i * k + c)); }
  // For the next run: of many short pieces the processor's own prefetch sees too little.
  SEG_INLINE void ahead(i64 i, Group c) const { __builtin_prefetch(x + i * k + c); }
  // f(operand, its k, columns that are read from, to) for groups a .. b, which are neighbours.
  template <class F> void operands(Group a, Group b, const F& f) { f(x, k, a, min(b + 8, k)); }
  i64 widest() const { return k; }
  // f(term, position, count) for rows p .. p + count - 1 of this, at most a block, all of them readable.
  template <class F> SEG_INLINE void rows(i64 p, i64 count, const F& f) const {
    if (whole(k, p + count, n)) { f(*this, p, count); return; }
    T copy[PADDED] = {};
    f(ColumnSum{padded(x, k, p, count, copy), n, k}, 0, count);
  }
};
// u (n, k), w (n, j): columns (k, j). Eight of them are eight scalars of u times eight of w: of a row of the result, if
// j > 8, otherwise neighbours in the whole of it.
template <class T> struct Outer {
  typedef T scalar;
  struct Group { i64 r, c; i8 row, column; };
  const T *u, *w;
  i64 n, k, j;
  i64 width() const { return j > 8 ? j : k * j; }
  i64 groups() const { return j > 8 ? k * groups_of(j) : groups_of(k * j); }
  i64 first(i64 g) const {
    if (j <= 8) return group_start(k * j, g);
    return g / groups_of(j) * j + group_start(j, g % groups_of(j));
  }
  i64 count() const { return min(8, width()); }
  Group group(i64 g) const {
    const i64 at = first(g), r = max(0, min(at / j, k - 8)), c = j > 8 ? at % j : 0;
    const i8 row = __builtin_convertvector((wide(iota8(0)) + ((double)at + 0.5)) / (double)j, i8);
    const i8 column = iota8((i32)(at - c)) - row * (i32)j;
    return {r, c, (row - (i32)r) & 7, column & 7};   // lanes that do not count, too, below 8
  }
  SEG_INLINE d8 at(i64 i, const Group& g) const {
    return wide(permute(load8(u + i * k + g.r), g.row)) * wide(permute(load8(w + i * j + g.c), g.column));
  }
  SEG_INLINE void ahead(i64, const Group&) const {}
  template <class F> void operands(const Group& a, const Group& b, const F& f) {
    const bool one = j > 8 && a.r + a.row[0] == b.r + b.row[0];   // row of the result
    f(u, k, a.r, min(b.r + 8, k));
    f(w, j, one ? a.c : 0, one ? b.c + 8 : j);
  }
  i64 widest() const { return max(k, j); }
  template <class F> SEG_INLINE void rows(i64 p, i64 count, const F& f) const {
    if (whole(k, p + count, n) && whole(j, p + count, n)) { f(*this, p, count); return; }
    T copy[2][PADDED] = {};
    f(Outer{padded(u, k, p, count, copy[0]), padded(w, j, p, count, copy[1]), n, k, j}, 0, count);
  }
};

// The lane tree over items 0 .. R - 1 of a row; items that are missing are left out of it.
template <int R, int FROM = 0, int STEP = 1, class V, class Plus> SEG_INLINE auto fold(const V* v, const Plus& plus) {
  if constexpr (STEP == 8) return v[FROM];
  else if constexpr (FROM + STEP >= R) return fold<R, FROM, 2 * STEP>(v, plus);
  else return plus(fold<R, FROM, 2 * STEP>(v, plus), fold<R, FROM + STEP, 2 * STEP>(v, plus));
}

// Groups first, first + 1, ... and their sums.
template <class Term> struct Part {
  typedef typename Term::scalar T;
  typedef Lane<Term> V;                       // a group's eight columns, one item of each
  static constexpr int LINE = sizeof(T) < 8 ? 8 / sizeof(T) : 1;   // groups in a cache line
  i64 first = -1;
  int count, columns;                         // how many groups, and columns in each
  i64 column[GROUPS];                         // of the output, the first of each group
  SEG_ALIGNED typename Term::Group group[GROUPS];

  void set(const Term& t, i64 from, i64 most) {
    first = from;
    count = (int)min(most, t.groups() - from);
    columns = (int)t.count();
    for (int g = 0; g < count; g++) {
      group[g] = t.group(from + g);
      column[g] = t.first(from + g);
    }
  }
  // R items of each group, p, p + STEP, ...: a lane of a block, or a row.
  template <int STEP, int R> SEG_INLINE void add(const Term& t, i64 p, V* to) const {
    const typename Kind<Term>::plus plus;
    for (int g = 0; g < count; g++) {
      d8 v[R];
#pragma clang loop unroll(full)
      for (int r = 0; r < R; r++) v[r] = t.at(p + STEP * r, group[g]);
      if constexpr (STEP == 8) { become(to[g], tree<0, 8, R>(v, plus)); continue; }
      if (g % LINE == LINE - 1)
#pragma clang loop unroll(full)
        for (int r = 0; r < R; r++) t.ahead(p + R + r, group[g]);
      become(to[g], fold<R>(v, plus));
    }
  }
  template <int STEP> SEG_NOINLINE void add(const Term& t, i64 p, i64 n, V* to) const {
    switch (n) {
      case 1: return add<STEP, 1>(t, p, to);
      case 2: return add<STEP, 2>(t, p, to);
      case 3: return add<STEP, 3>(t, p, to);
      case 4: return add<STEP, 4>(t, p, to);
      case 5: return add<STEP, 5>(t, p, to);
      case 6: return add<STEP, 6>(t, p, to);
      case 7: return add<STEP, 7>(t, p, to);
      default: return add<STEP, 8>(t, p, to);
    }
  }
  // At most four items: without a branch for each number, which would cost more than a narrow run.
  SEG_NOINLINE void few(const Term& t, i64 p, i64 n, V* to) const {
    const typename Kind<Term>::plus plus;
    for (int g = 0; g < count; g++) {
      d8 v[4];
      for (int e = 0; e < 4; e++) v[e] = l8{} + n > e ? t.at(p + min(e, n - 1), group[g]) : d8{};
      to[g] = plus(plus(v[0], v[2]), plus(v[1], v[3]));
    }
  }
  // A row and up to eight items more.
  SEG_NOINLINE void two_rows(const Term& t, i64 p, i64 n, V* to) const {
    const typename Kind<Term>::plus plus;
    for (int g = 0; g < count; g++) {
      V v[8];
#pragma clang loop unroll(full)
      for (int e = 0; e < 8; e++) {
        const d8 first = t.at(p + e, group[g]);
        if (n > 8 + e) become(v[e], plus(first, t.at(p + 8 + e, group[g])));
        else become(v[e], first);
      }
      if (g % LINE == LINE - 1)
        for (int e = 0; e < n; e++) t.ahead(p + n + e, group[g]);
      to[g] = fold<8>(v, plus);
    }
  }
  // The lanes of a block of n items, to[e * count + g].
  void block(const Term& t, i64 p, i64 n, V* to) const {
    for (int e = 0; e < 8; e++, to += count) {
      if (n > e) add<8>(t, p + e, (n - e + 7) / 8, to);
      else for (int g = 0; g < count; g++) to[g] = {};
    }
  }
  V folded(const V* h, int g) const {
    V v[8];
    for (int e = 0; e < 8; e++) v[e] = h[e * count + g];
    return fold<8>(v, typename Kind<Term>::plus());
  }
  // What a group needs to work with, in data of n items: one block, or three and the supers of a listed run.
  static i64 work_bytes(i64 n) {
    if (n <= BLOCK) return 8 * (i64)sizeof(V);
    return SUPER_WORK * (i64)sizeof(V) + super_count(min(n, CHUNK)) * (i64)sizeof(Pair<d8>);
  }
  static constexpr i64 SUPER_WORK = 3 * 8;
  // One super of each group; n is at most its size. Of `t`, only `rows` is used.
  template <class Source> SEG_NOINLINE void super(const Source& t, i64 p, i64 n, Pair<d8>* to, V* work) const {
    V *const hi = work, *const lo = hi + 8 * count, *const v = lo + 8 * count;
    const bool more = n > BLOCK;              // than one block
    for (int c = 0; more && c < 8 * count; c++) lo[c] = {};
    for (i64 i = 0; i < n; i += BLOCK) {
      V* const h = i ? v : hi;
      t.rows(p + i, min(n - i, BLOCK), [=](const Term& t, i64 p, i64 n) SEG_INLINED { block(t, p, n, h); });
      if (!i) continue;
      for (int c = 0; c < 8 * count; c++) accumulate<T>(hi[c], lo[c], v[c]);
    }
    for (int g = 0; g < count; g++)
      if constexpr (__is_same(V, d8)) to[g] = {folded(hi, g), more ? folded(lo, g) : d8{}};
      else to[g] = folded(hi, g);
  }
  void put(const Out<T>& out, i64 s, const V* sums, i64 n) const {
    if (out.plain() && columns == 8) {
      if ((u64)s >= (u64)out.m) return;
      T* const to = out.value + s * out.width;
      const d8 elements = d8{} + out.elements((double)n);
      for (int g = 0; g < count; g++) store8(to + column[g], finished(out.finish, handed_on(sums[g]), elements));
      return;
    }
    for (int g = 0; g < count; g++) seg::put(out, s, column[g], columns, handed_on(sums[g]), n);
  }
  // Parts of supers, by super, then by group.
  SEG_NOINLINE void join(const Out<T>& out, const Pair<d8>* parts, i64 n, i64 s) const {
    V sums[GROUPS];
    for (int g = 0; g < count; g++) {
      Pair<d8> a = parts[g];
      for (i64 k = 1; k < super_count(n); k++) seg::add(a, parts[k * count + g]);
      sums[g] = handed_on<Term>(a);
    }
    put(out, s, sums, n);
  }
  // A listed run, which is shorter than a chunk.
  SEG_INLINE void run(const Term& t, const Out<T>& out, i64 p, i64 n, i64 s, V* v) const {
    if (n > BLOCK) {
      Pair<d8>* const parts = (Pair<d8>*)(v + SUPER_WORK * count);
      for (i64 k = 0; k < super_count(n); k++)
        super(t, p + k * SUPER, min(n - k * SUPER, SUPER), parts + k * count, v);
      join(out, parts, n, s);
      return;
    }
    const auto sum = [&](const Term& t, i64 p, i64 n) SEG_INLINED {   // otherwise 3 ns a run more
      if (n <= 4 && count <= 2) few(t, p, n, v);
      else if (n <= 8) add<1>(t, p, n, v);
      else if (n <= 16) two_rows(t, p, n, v);
      else block(t, p, n, v);
    };
    t.rows(p, n, sum);
    if (n > 16)
      for (int g = 0; g < count; g++) v[g] = folded(v, g);
    put(out, s, v, n);
  }
};

template <class Term, class T> struct Columns : Reduction {
  Term t;
  Out<T> out;
  Part<Term> part;                            // of runs that are not listed
  bool strided;
  static const Columns& of(const Reduction* r) { return *(const Columns*)r; }

  i64 listed() const { return even(t.groups(), GROUPS); }   // groups in a part of listed runs
  void runs(const Term& t, const Runs& runs, int k, char* work) const {
    if (part.first) return;                   // by the first pass, for the whole width
    const i64 groups = t.groups(), most = listed();
    Part<Term> part;
    for (int i = 0; i < k; i++)
      for (i64 g = 0; g < groups; g += most) {
        if (part.first != g) part.set(t, g, most);
        part.run(t, out, runs.base + runs.start[i], runs.size[i], (i64)((u64)runs.origin + (u64)(i64)runs.seg[i]),
                 (Lane<Term>*)work);
      }
  }
  Columns(const Call& call, i64 n, Term term, const Out<T>& to) {
    idx = call.idx;
    this->n = n;
    m = to.m;
    items = 1;
    hooks[0] = hooks[1] = nullptr;
    t = term;
    out = to;
    list = [](const Reduction* r, Runs& runs, int k, i64, char* work) { of(r).runs(of(r).t, runs, k, work); };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char* work) {
      of(r).part.super(of(r).t, first, count, (Pair<d8>*)part, (Lane<Term>*)work);
    };
    join = [](const Reduction* r, const void* parts, i64 n, i64 s) {
      of(r).part.join(of(r).out, (const Pair<d8>*)parts, n, s);
    };
    zeros = [](const Reduction* r, i64 a, i64 b) {   // by the first pass, too; nothing of it is set yet
      if (!of(r).part.first) seg::zeros(of(r).out, a, b);
    };
    strided = call.strided;
    if (strided) by_copies();
  }
  // Rows i .. i + rows - 1 of the operands: whole ones, or what the groups of a part read of a row.
  Term copied(i64 i, i64 rows, const Part<Term>* part, char* work) const {
    Term c = t;
    Copies copies = {work};
    const auto a = part ? part->group[0] : typename Term::Group(), b = part ? part->group[part->count - 1] : a;
    c.operands(a, b, [&](auto& x, i64& k, i64 from, i64 to) {
      if (part) to -= from; else from = 0, to = k;
      copies.rows(x, i, rows, from, to);
      k = to;
    });
    c.n = i + rows;
    return c;
  }
  struct Source {
    const Columns& c;
    char* work;
    template <class F> void rows(i64 p, i64 count, const F& f) const {
      c.copied(p, count, &c.part, work).rows(p, count, f);
    }
  };
  i64 dense_bytes() const { return lines(Part<Term>::work_bytes(n) * max(listed(), part.count)); }
  i64 copied_bytes() const {
    Term c = t;
    i64 bytes = 0;
    c.operands(part.group[0], part.group[part.count - 1], [&](auto& x, i64&, i64 from, i64 to) {
      bytes += lines(max(PIECE, BLOCK * (to - from)) * (i64)sizeof(*x));
    });
    return bytes;
  }
  void by_copies() {
    most_listed = min(CHUNK, max(1, PIECE / max(1, t.widest())));
    list = [](const Reduction* r, Runs& runs, int k, i64, char* work) {
      const Columns& c = of(r);
      if (c.part.first) return;
      const i64 rows = (i64)runs.start[k - 1] + runs.size[k - 1];
      c.runs(c.copied(runs.base, rows, nullptr, work + c.dense_bytes()), runs, k, work);
    };
    Reduction::super = [](const Reduction* r, i64 first, i64 count, void* part, char* work) {
      const Columns& c = of(r);
      c.part.super(Source{c, work + c.dense_bytes()}, first, count, (Pair<d8>*)part, (Lane<Term>*)work);
    };
  }
};
template <class Term, class T> i64 reduce(Columns<Term, T>&& r, int threads) {
  constexpr i64 bytes = sizeof(Pair<d8>);     // of a group, times most_supers for a run that crosses threads
  if (!r.t.groups()) return -1;               // no columns
  // A second pass over the data costs more than some scratch: it may be a sixteenth of them.
  r.partials = max(PARTIALS, r.n * r.t.widest() * (i64)sizeof(typename Term::scalar) / 16);
  const i64 most = even(r.t.groups(), max(4, min(GROUPS, r.partials / (bytes * most_supers(r.n) * max(1, threads)))));
  for (i64 g = 0; g < r.t.groups(); g += most) {
    r.part.set(r.t, g, most);
    r.part_bytes = r.part.count * bytes;
    r.work_bytes = r.dense_bytes() + (r.strided ? r.copied_bytes() : 0);
    if (reduce((const Reduction&)r, threads) != -1) return NO_MEMORY;
    r.hooks[0] = r.hooks[1] = nullptr;        // once is enough
  }
  return -1;
}
}}  // namespace seg
