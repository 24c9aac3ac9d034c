// float16 and bfloat16: in memory only. Loaded, they are float32, which holds every value of both; float64 lanes are
// rounded to them once, by way of a float32 that is rounded to odd.
//
// They are not Clang's own types, since those convert by calls of a library that is not there. What a by-product of
// such data is kept in is float32: 1 / 70000 is not a normal number of float16. Included before a table, this file is all
// that the table needs to have float16 and bfloat16 instances.
#pragma once
#include "vector.h"

// Whether the processor converts between float16 and float32. SEG_PORTABLE: for a test of what serves if it does not.
#if (defined(__F16C__) || defined(__aarch64__)) && !defined(SEG_PORTABLE)
#define SEG_HALF_CONVERSIONS
#endif

namespace seg { namespace {

typedef u16 h4 __attribute__((vector_size(8)));
typedef u16 h8 __attribute__((vector_size(16)));
typedef u16 h16 __attribute__((vector_size(32)));
typedef u32 u32x8 __attribute__((vector_size(32)));

template <class Format> struct Half {
  u16 bits;
  Half() = default;
  SEG_INLINE explicit Half(double v);
  SEG_INLINE explicit operator float() const { return Format::template decode<f4>(h4{bits, bits, bits, bits})[0]; }
  SEG_INLINE explicit operator double() const { return (double)(float)*this; }
};

// Eight lanes of float64 in float32, so that a further rounding to at most 22 bits is the only one that counts: what
// is not exact gets an odd last bit, hence is no tie there, and has not been rounded away from what it was.
SEG_INLINE f8 to_odd(d8 v) {
#if defined(__AVX512F__) && !defined(SEG_PORTABLE)
  const i8 f = (i8)__builtin_ia32_cvtpd2ps512_mask(v, f8{}, 255, 8 | 3);   // towards zero
#else
  const f8 nearest = __builtin_convertvector(v, f8);
  const l8 past = __builtin_elementwise_abs(wide(nearest)) > __builtin_elementwise_abs(v);
  const i8 f = (i8)nearest + __builtin_convertvector(past, i8);   // one step towards zero, from infinity too
#endif
  const l8 inexact = wide((f8)f) != v;
  return (f8)(f | (__builtin_convertvector(inexact, i8) & 1));
}

struct Binary16 {
  template <class F, class H> static SEG_INLINE F decode(H h) {
#ifdef SEG_HALF_CONVERSIONS
    typedef _Float16 lanes __attribute__((vector_size(sizeof(H))));
    return __builtin_convertvector((lanes)h, F);
#else
    typedef decltype(F{} == F{}) I;
    const I b = __builtin_convertvector(h, I), magnitude = (b & 0x7fff) << 13, exponent = b & 0x7c00;
    const I subnormal = (I)((F)(magnitude | 113 << 23) - 0x1p-14f);
    const I normal = exponent == 0x7c00 ? magnitude | 255 << 23 : magnitude + (112 << 23);
    return (F)((exponent == 0 ? subnormal : normal) | (b & 0x8000) << 16);
#endif
  }
  static SEG_INLINE h8 encode(f8 v) {
#ifdef SEG_HALF_CONVERSIONS
    typedef _Float16 lanes __attribute__((vector_size(16)));
    return (h8)__builtin_convertvector(v, lanes);
#else
    const i8 b = (i8)v, magnitude = b & 0x7fffffff;
    const i8 subnormal = (i8)((f8)magnitude + 0.5f) - (126 << 23);   // the sum is rounded to multiples of 2^-24
    const i8 normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    i8 r = magnitude < 113 << 23 ? subnormal : normal;
    r = magnitude >= 143 << 23 ? i8{} + 0x7c00 : r;
    r = magnitude > 255 << 23 ? i8{} + 0x7e00 : r;
    return __builtin_convertvector(r | (b >> 16 & 0x8000), h8);
#endif
  }
};
struct Brain16 {
  template <class F, class H> static SEG_INLINE F decode(H h) {
    typedef decltype(F{} == F{}) I;
    return (F)(__builtin_convertvector(h, I) << 16);
  }
  static SEG_INLINE h8 encode(f8 v) {
    const u32x8 b = (u32x8)v, rounded = b + 0x7fff + (b >> 16 & 1);
    return __builtin_convertvector((v == v ? rounded : b | 1 << 22) >> 16, h8);
  }
};
typedef Half<Binary16> float16;
typedef Half<Brain16> bfloat16;

template <class Format> Half<Format>::Half(double v) : bits(Format::encode(to_odd(splat<d8>(v)))[0]) {}

template <class Format> struct Scalar<Half<Format>> {
  typedef float kept;
  typedef u16 word;
  static constexpr bool exact = __is_same(Format, Binary16);   // 22 bits, and 2^-48 is a normal number
};

template <class Format> SEG_INLINE f8 load8(const Half<Format>* p) { return Format::template decode<f8>(load<h8>(p)); }
template <class Format> SEG_INLINE f4 load4(const Half<Format>* p) { return Format::template decode<f4>(load<h4>(p)); }
template <class Format> SEG_INLINE void store8(Half<Format>* p, d8 v) { store(p, Format::encode(to_odd(v))); }
template <class Format> SEG_INLINE void store8(Half<Format>* p, f8 v) { store(p, Format::encode(v)); }
template <class Format> SEG_INLINE void store4(Half<Format>* p, d4 v) {
  const h8 all = Format::encode(to_odd(__builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3)));
  store(p, __builtin_shufflevector(all, all, 0, 1, 2, 3));
}
#ifdef __AVX512F__
template <class Format> SEG_INLINE void expand(Half<Format>* out, d8 sums, u32 bits) {   // see output.h
  const i8 v = __builtin_convertvector(Format::encode(to_odd(sums)), i8);
  const i16 w = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  store(out, __builtin_convertvector((i16)__builtin_ia32_expandsi512_mask(w, i16{}, (u16)bits), h16));
}
#endif
}}  // namespace seg
