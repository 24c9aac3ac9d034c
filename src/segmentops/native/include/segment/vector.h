// Fixed-width integers, Clang's vector types, and the few operations on them that the engine needs.
//
// Everything is written for vectors of eight float64 lanes: one register with AVX-512, two with AVX2, four with
// NEON or SSE2. Only what the vector extensions cannot say is an x86 builtin, behind __AVX512F__, with a plain
// version beside it. There is no standard library here, and no inline assembly (Warp's Clang has neither).
#pragma once

#define SEG_INLINED __attribute__((always_inline))   // a lambda
#define SEG_INLINE inline SEG_INLINED
#define SEG_NOINLINE __attribute__((noinline))
// For every small array that is read back as a vector: LLVM may keep the vector in the array's own stack slot, and
// moves it with aligned instructions whatever the array's alignment (seen with AVX2, Warp 1.19).
#define SEG_ALIGNED alignas(64)

// The unnamed namespace keeps the symbols of one Warp module apart from those of another.
namespace seg { namespace {
// A product and a sum are two roundings on every machine; otherwise bits would depend on the code path.
#pragma clang fp contract(off)

typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

// Positions of elements, -1: none; int32 or int64, see `Call`.
struct Positions;

typedef double d4 __attribute__((vector_size(32)));
typedef double d8 __attribute__((vector_size(64)));
typedef float f4 __attribute__((vector_size(16)));
typedef float f8 __attribute__((vector_size(32)));
typedef float f16 __attribute__((vector_size(64)));
typedef i32 i4 __attribute__((vector_size(16)));
typedef i32 i8 __attribute__((vector_size(32)));
typedef i32 i16 __attribute__((vector_size(64)));
typedef i64 l4 __attribute__((vector_size(32)));
typedef i64 l8 __attribute__((vector_size(64)));
typedef bool b8 __attribute__((ext_vector_type(8)));
typedef bool b16 __attribute__((ext_vector_type(16)));

SEG_INLINE i64 min(i64 a, i64 b) { return a < b ? a : b; }
SEG_INLINE i64 max(i64 a, i64 b) { return a > b ? a : b; }

// What else depends on the type of the data; half.h has other answers.
template <class T> struct Scalar {
  typedef T kept;                             // of a by-product
  typedef T word;                             // for copies
  static constexpr bool exact = false;        // whether float32 holds every product of two
};
template <class T> using kept = typename Scalar<T>::kept;

// A vector at an address that is aligned for its scalars only.
template <class V, class T> SEG_INLINE V load(const T* p) {
  typedef V unaligned __attribute__((aligned(sizeof(T))));
  return *(const unaligned*)p;
}
template <class V, class T> SEG_INLINE void store(T* p, V v) {
  typedef V unaligned __attribute__((aligned(sizeof(T))));
  *(unaligned*)p = v;
}
// v in every lane. (Added to zero, a vector would lose the sign of -0.0.)
template <class V, class T> SEG_INLINE V splat(T v) { return (__typeof__(V{}[0]))v - V{}; }

SEG_INLINE d8 load8(const double* p) { return load<d8>(p); }
SEG_INLINE f8 load8(const float* p) { return load<f8>(p); }
SEG_INLINE i8 load8(const i32* p) { return load<i8>(p); }
SEG_INLINE d4 load4(const double* p) { return load<d4>(p); }
SEG_INLINE f4 load4(const float* p) { return load<f4>(p); }

SEG_INLINE d8 wide(d8 v) { return v; }
SEG_INLINE d4 wide(d4 v) { return v; }
SEG_INLINE d8 wide(f8 v) { return __builtin_convertvector(v, d8); }
SEG_INLINE d4 wide(f4 v) { return __builtin_convertvector(v, d4); }
SEG_INLINE d8 wide(i8 v) { return __builtin_convertvector(v, d8); }

// Rounds eight float64 lanes to scalars of type T and stores them: all, or the first n.
template <class T, class V> SEG_INLINE void store8(T* p, V v) {
  typedef T narrow __attribute__((vector_size(8 * sizeof(T))));
  store(p, __builtin_convertvector(v, narrow));
}
template <class T, class V> SEG_INLINE void store8(T* p, V v, i64 n) {
  if (n >= 8) { store8(p, v); return; }
  SEG_ALIGNED T r[8];
  store8(r, v);
  for (i64 i = 0; i < n; i++) p[i] = r[i];
}
template <class T> SEG_INLINE void store4(T* p, d4 v) {
  typedef T narrow __attribute__((vector_size(4 * sizeof(T))));
  store(p, __builtin_convertvector(v, narrow));
}
// The first n < 8 scalars at p, where a whole vector might not be readable.
template <class T> SEG_INLINE d8 load_first(const T* p, i64 n, i64 stride = 1) {
  SEG_ALIGNED double r[8] = {};
  for (i64 i = 0; i < n && i < 8; i++) r[i] = (double)p[i * stride];
  return load<d8>(r);
}

// Lanes k .. k + 7 of a row of which only the first n exist: v where k + lane < n, else 0. n is a vector of
// equal numbers: AVX-512 compares against a broadcast from memory, straight into a mask.
SEG_INLINE i8 iota8(i32 k) { return i8{k, k + 1, k + 2, k + 3, k + 4, k + 5, k + 6, k + 7}; }
SEG_INLINE f8 keep(f8 v, i32 k, i8 n) { return iota8(k) < n ? v : f8{}; }
SEG_INLINE d8 keep(d8 v, i32 k, i8 n) { return __builtin_convertvector(iota8(k) < n, l8) ? v : d8{}; }
SEG_INLINE f4 keep(f4 v, i4 n) { return i4{0, 1, 2, 3} < n ? v : f4{}; }
SEG_INLINE d4 keep(d4 v, i4 n) { return __builtin_convertvector(i4{0, 1, 2, 3} < n, l4) ? v : d4{}; }

// Which lanes of a comparison hold. (As a mask register; __builtin_reduce_and would add lanes up, pair by pair.)
template <class V> SEG_INLINE u8 bitmask8(V v) { return __builtin_bit_cast(u8, __builtin_convertvector(v, b8)); }
SEG_INLINE u16 bitmask(i16 v) { return __builtin_bit_cast(u16, __builtin_convertvector(v, b16)); }

#if defined(__AVX2__) && !defined(__AVX512F__)
// Which lanes to take, for each mask of eight.
struct Packing {
  u8 lane[256][8];
  constexpr Packing() : lane{} {
    for (int bits = 0; bits < 256; bits++)
      for (int j = 0, k = 0; j < 8; j++)
        if (bits >> j & 1) lane[bits][k++] = (u8)j;
  }
};
constexpr Packing packing;
SEG_INLINE void pack(i32* to, i8 v, u8 bits) {
  typedef u8 lanes __attribute__((vector_size(8)));
  store(to, (i8)__builtin_ia32_permvarsi256(v, __builtin_convertvector(load<lanes>(packing.lane[bits]), i8)));
}
#endif
// Keeps v[j] where bits has a one, packed; may write all sixteen places.
SEG_INLINE void pack(void* to, i16 v, u16 bits) {
#ifdef __AVX512F__
  store((i32*)to, (i16)__builtin_ia32_compresssi512_mask(v, i16{}, bits));
#elif defined(__AVX2__)
  pack((i32*)to, __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), (u8)bits);
  pack((i32*)to + __builtin_popcount(bits & 255), __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15),
       (u8)(bits >> 8));
#else
  SEG_ALIGNED i32 from[16];
  i32* at = (i32*)to;
  store(from, v);
  for (int j = 0; j < 16; j++) {          // no branch: what bits holds cannot be predicted
    *at = from[j];
    at += bits >> j & 1;
  }
#endif
}
// Lanes k[0] .. k[7] of v, each k below 8.
template <class T, class V> SEG_INLINE V permute_portably(V v, i8 k) {
  SEG_ALIGNED T from[8], to[8];
  SEG_ALIGNED i32 at[8];
  store(from, v);
  store(at, k);
  for (int j = 0; j < 8; j++) to[j] = from[at[j] & 7];
  return load<V>(to);
}
SEG_INLINE f8 permute(f8 v, i8 k) {
#ifdef __AVX2__
  return (f8)__builtin_ia32_permvarsf256(v, k);
#else
  return permute_portably<float>(v, k);
#endif
}
SEG_INLINE d8 permute(d8 v, i8 k) {
#ifdef __AVX512F__
  return (d8)__builtin_ia32_permvardf512(v, __builtin_convertvector(k, l8));
#else
  return permute_portably<double>(v, k);
#endif
}

// How 1 / (rms_norm * count) is kept. Of subnormal data float32 has no such number, of very large data a subnormal one
// with few digits: these are kept as -2^-24 and -2^48 times themselves.
template <class K> SEG_INLINE d8 encoded(d8 v) {
  if constexpr (sizeof(K) == 8) return v;
  const d8 small = ((v > 0.0) & (v < (double)__FLT_MIN__)) ? v * -0x1p48 : v;
  return v > (double)__FLT_MAX__ ? v * -0x1p-24 : small;
}
template <class V> SEG_INLINE V decoded(V v) {
  const V small = ((v < 0) & (v > -0x1p-77)) ? v * -0x1p-48 : v;
  return v < -0x1p100 ? v * -0x1p24 : small;
}
}}  // namespace seg
