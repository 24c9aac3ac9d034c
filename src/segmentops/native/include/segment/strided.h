// Operands whose rows lie anywhere: expanded, transposed, sliced, in any layout that strides can say.
//
// The loops of the engine read rows of k scalars one after the other. Of an operand with strides they read copies: of
// the rows that a list, a piece of a super or a piece of a per-element loop is about to read, in scratch of the thread.
// Then the same code runs, which gives the same bits. Where row i is, is known in one place, `Rows::at`.
#pragma once
#include "runs.h"
#include "scratch.h"

namespace seg { namespace {

// What the address of an operand points to, if this bit of `mode` is set. By-products and idx stay as they are.
constexpr i64 STRIDED = 8;
struct Strided {
  const void* p;
  i64 dims;                                   // the first one counts rows
  const i64 *size, *stride;                   // in scalars; stride may be null: one row after the other
};

// Scalars of an operand that are copied at a time, at most; or one row of it, if that has more.
constexpr i64 PIECE = 8192;

template <class T> struct Rows {
  static constexpr int MOST = 16;
  const T* p;
  i64 k = 1, step = 1;                        // scalars in a row, and from a row to the next
  int dims = 0;                               // of a row, as few as say it
  i64 size[MOST], stride[MOST];               // innermost first

  explicit Rows(const T* operand) {
    const Strided& s = *(const Strided*)operand;
    p = (const T*)s.p;
    i64 next = 1;
    for (i64 d = s.dims - 1; d > 0; d--) {
      const i64 n = s.size[d], by = s.stride ? s.stride[d] : next;
      next *= n;
      k *= n;
      if (n == 1) continue;
      if (dims && by == size[dims - 1] * stride[dims - 1]) { size[dims - 1] *= n; continue; }
      size[dims] = n;
      stride[dims++] = by;
    }
    if (!dims) {
      size[dims] = stride[dims] = 1;
      dims = 1;
    }
    step = s.stride ? s.stride[0] : k;
  }
  bool whole() const { return dims == 1 && stride[0] == 1 && step == k; }   // one row after the other
  const T* at(i64 i) const { return p + i * step; }

  // Scalars c .. c + count - 1 of each of `rows` rows from i on, to rows of `count`.
  SEG_NOINLINE void copy(i64 i, i64 rows, i64 c, i64 count, T* to) const {
    for (i64 q = c; q < c + count;) {
      i64 offset = 0, rest = q;
      for (int d = 0; d < dims; rest /= size[d++]) offset += rest % size[d] * stride[d];
      const i64 part = min(size[0] - q % size[0], c + count - q);
      plane(i, offset, rows, part, to + (q - c), count);
      q += part;
    }
  }
  void plane(i64 i, i64 offset, i64 rows, i64 columns, T* to, i64 pitch) const {
    constexpr i64 TILE = 64;                  // rows, where neighbours in a column are closer than in a row
    const i64 by = stride[0], apart = by < 0 ? -by : by, tile = step < apart && -step < apart ? TILE : 1;
    for (i64 r = 0; r < rows; r += tile) {
      const T* const from = at(i + r) + offset;
      T* const t = to + r * pitch;
      const i64 count = min(tile, rows - r);
      if (tile > 1)
        for (i64 c = 0; c < columns; c++)
          for (i64 e = 0; e < count; e++) t[e * pitch + c] = from[e * step + c * by];
      else if (by == 1) __builtin_memcpy(t, from, (u64)columns * sizeof(T));
      else if (by == 0) fill(t, from[0], columns);
      else for (i64 c = 0; c < columns; c++) t[c] = from[c * by];
    }
  }
  static void fill(T* to, T value, i64 count) {
    for (i64 c = 0; c < count; c++) to[c] = value;
  }
  // Scalars first .. first + count - 1 of all rows, read flat.
  void flat(i64 first, i64 count, T* to) const {
    while (count > 0) {
      const i64 i = first / k, c = first % k, rows = c ? 0 : count / k, part = rows ? rows * k : min(k - c, count);
      if (rows) copy(i, rows, 0, k, to);
      else copy(i, 1, c, part, to);
      first += part;
      count -= part;
      to += part;
    }
  }
};

// Addresses may lie outside of the array that they are counted in.
template <class T> SEG_INLINE const T* moved(const T* p, i64 scalars) {
  return (const T*)((u64)p + (u64)scalars * sizeof(T));
}

// Where copies go: from `p` on.
struct Copies {
  char* p;
  const void *last = nullptr, *copy = nullptr;   // an operand of a term may come twice

  template <class T> T* take(i64 scalars) {
    T* const to = (T*)p;
    p += lines(scalars * (i64)sizeof(T));
    return to;
  }
  // `x` then reads, where `columns` scalars from `from` on make a row, rows i .. i + rows - 1 of the operand.
  template <class T> void rows(const T*& x, i64 i, i64 rows, i64 from, i64 columns) {
    const Rows<T> r(x);
    x = r.p;
    if (columns == r.k && r.whole()) return;
    T* const to = take<T>(rows * columns);
    r.copy(i, rows, from, columns, to);
    x = moved(to, -i * columns - from);
  }
  // `x` then reads scalars first .. first + count - 1 of the operand from 0 on.
  template <class T> void flat(const T*& x, i64 first, i64 count) {
    if (x != last) {
      last = x;
      const Rows<T> r(x);
      if (r.whole()) {
        copy = r.p + first;
      } else {
        T* const to = take<T>(count);
        r.flat(first, count, to);
        copy = to;
      }
    }
    x = (const T*)copy;
  }
};

// Scalars that are read one by one, of rows of k.
template <class T> struct Scalars {
  i64 size[2];
  Strided dense;
  Rows<T> rows;
  bool whole;
  Scalars(const T* x, i64 n, i64 k, bool strided)
      : size{n, k}, dense{x, 2, size, nullptr}, rows(strided ? x : (const T*)&dense), whole(rows.whole()) {}
  T operator()(i64 i, i64 c) const {
    if (whole) return rows.p[i * rows.k + c];
    i64 offset = 0;
    for (int d = 0; d < rows.dims; c /= rows.size[d++]) offset += c % rows.size[d] * rows.stride[d];
    return rows.at(i)[offset];
  }
};

// Rows that are read one by one.
template <class T> struct Single {
  const T* x;
  i64 k;
  bool strided;
  const T* operator()(i64 i, T* copy) const {
    if (!strided) return x + i * k;
    const Rows<T> r(x);
    if (r.dims == 1 && r.stride[0] == 1) return r.at(i);
    r.copy(i, 1, 0, k, copy);
    return copy;
  }
};

// A per-element loop over copies: `Loop` has idx, m, loop(b, e), and operands(f, its own members), which says f.rows(x,
// k) of each operand with a row per element, f.segments(s, k) of each with a row per segment, and f.plain(s) of an array of
// one scalar per segment that has no strides.
struct Pieces {
  i64 rows = 0, segments = 0;                 // in a piece, at most; 0 rows: nothing is copied
  i64 bytes = 0;
};
struct Measured {
  i64 row = 1, segment = 1, row_bytes = 4, segment_bytes = 8, arrays = 2;
  bool apart = false;                         // whether a segment's rows have to be copied
  template <class T> void rows(const T*&, i64 k) {
    row = max(row, k);
    row_bytes += k * (i64)sizeof(T);
    arrays++;
  }
  template <class T> void segments(const T*& s, i64 k) {
    segment = max(segment, k);
    segment_bytes += k * (i64)sizeof(T);
    arrays++;
    apart |= !Rows<T>(s).whole();
  }
  template <class T> void plain(const T*&) {
    segment_bytes += (i64)sizeof(T);
    arrays++;
  }
};
template <class Loop> void measure(Loop& loop) {
  Measured all;
  loop.operands(all);
  Pieces& p = loop.pieces;
  p.rows = max(1, PIECE / all.row);
  p.segments = all.apart ? min(p.rows, max(1, PIECE / all.segment)) : 0;
  p.bytes = p.rows * all.row_bytes + p.segments * all.segment_bytes + all.arrays * LINE;
}
struct CopiedPiece {
  Copies copies;
  i64 i, count;                               // elements
  const i64* number;                          // segments that are copied, null: none are
  i64 numbers;
  template <class T> void rows(const T*& x, i64 k) { copies.rows(x, i, count, 0, k); }
  template <class T> void segments(const T*& s, i64 k) {
    const Rows<T> r(s);
    if (!number) { s = r.p; return; }
    T* const to = copies.take<T>(numbers * k);
    for (i64 q = 0; q < numbers; q++) r.copy(number[q], 1, 0, k, to + q * k);
    s = to;
  }
  template <class T> void plain(const T*& s) {
    if (!number) return;
    T* const to = copies.take<T>(numbers);
    for (i64 q = 0; q < numbers; q++) to[q] = s[number[q]];
    s = to;
  }
};
template <class Loop> SEG_NOINLINE void by_pieces(const Loop& loop, i64 b, i64 e, char* work) {
  const Pieces& most = loop.pieces;
  while (b < e) {
    Loop piece = loop;
    CopiedPiece c = {{work}, b, min(e - b, most.rows), nullptr, 0};
    if (most.segments) {                      // then idx is copied, too: segments by their order here
      i32* const local = c.copies.take<i32>(most.rows);
      i64 *const number = c.copies.take<i64>(most.segments), before = 0, n = 0;
      i32 now = -1;
      for (; n < c.count; n++) {
        const i64 s = loop.idx[b + n];
        if (n == 0 || s != before) {
          const bool inside = (u64)s < (u64)loop.m;
          if (inside && c.numbers == most.segments) break;
          if (inside) number[c.numbers] = s;
          now = inside ? (i32)c.numbers++ : -1;
          before = s;
        }
        local[n] = now;
      }
      c.count = n;
      c.number = number;
      piece.idx = {moved(local, -b), false};
      piece.m = c.numbers;
    }
    piece.operands(c);
    piece.loop(b, b + c.count);
    b += c.count;
  }
}
}}  // namespace seg
