// Any function of the engine as an XLA FFI handler.
//
// Its pointers are the operands of the call, then its results, in order; results at the end that the call lacks are
// null. Its integers, but the mode, are read from the shapes of those buffers, so that one program serves all sizes: the
// attribute `sizes` says where. 8 b + d is dimension d of buffer b; for d > 0, those that follow belong to it, too.
#pragma once
#include "pages.h"
#include "scratch.h"
#include "xla_pool.h"

namespace seg { namespace xla { namespace {

template <class P> struct Holds;              // which buffers a pointer may be to
template <> struct Holds<float> { static bool type(Type t) { return t == F32; } };
template <> struct Holds<double> { static bool type(Type t) { return t == F64; } };
template <> struct Holds<i32> { static bool type(Type t) { return t == S32; } };
template <> struct Holds<void> { static bool type(Type t) { return t == S32 || t == S64; } };   // idx
template <> struct Holds<Positions> : Holds<void> {};
template <class P> struct Holds<const P> : Holds<P> {};

SEG_INLINE i64 scalars(const Buffer* b, i64 from) {   // of dimension `from` and those that follow
  i64 product = 1;
  for (i64 d = from; d < b->rank; d++) product *= b->dims[d];
  return product;
}

// Hands out the arguments of a call one after the other.
struct Reader {
  const Frame* f;
  const Array* sizes;
  i64 pointer, integer, mode;
  const char* wrong;

  void start() { pointer = integer = mode = 0; }
  const Buffer* buffer(i64 at) const {
    if (at < f->arguments.count) return f->arguments.items[at];
    at -= f->arguments.count;
    return at < f->results.count ? f->results.items[at] : nullptr;
  }
  i64 size(i64 which) {
    const i64 at = sizes->data[which], d = at & 7;
    const Buffer* b = at < 0 ? nullptr : buffer(at >> 3);
    if (!b || d >= b->rank + (d > 0)) {
      wrong = "segmentops: the attribute sizes does not fit the buffers";
      return 0;
    }
    return d == 0 ? b->dims[0] : scalars(b, d);
  }
  template <class A> A next() {
    if constexpr (__is_pointer(A)) return take((A)nullptr);
    else return integer < (i64)sizes->count ? size(integer++) : mode;
  }
  template <class P> P* take(P*) {
    const Buffer* b = buffer(pointer++);
    if (!b) return nullptr;
    if (!Holds<P>::type(b->type))
      wrong = "segmentops: an operand or a result has another type than the handler";
    if constexpr (__is_same(P, const void)) mode |= b->type == S64;
    else if constexpr (__is_same(P, Positions) || __is_same(P, const Positions)) mode |= b->type == S32 ? 4 : 0;
    else if constexpr (!__is_const(P)) prefer_large_pages(b->data, (u64)scalars(b, 0) * sizeof(P));
    return (P*)b->data;
  }
};

Error* refuse(const Frame* f, const char* message, i32 code = INVALID_ARGUMENT) {
  ErrorArgs args = {sizeof(args), nullptr, message, code};
  return f->api->error_create(&args);
}

template <class... A> struct Called {         // braces evaluate their arguments from left to right
  const i64 result;
  Called(i64 (*function)(A...), A... a) : result(function(a...)) {}
};
template <class... A> Error* handle(const Frame* f, i64 (*function)(A...)) {
  constexpr i64 integers = ((__is_pointer(A) ? 0 : 1) + ...);
  if (f->attributes.count != 1) return refuse(f, "segmentops: the handler takes one attribute, sizes");
  Reader r = {f, f->attributes.items[0], 0, 0, 0, nullptr};
  if (r.sizes->type != S64 || r.sizes->count != integers - 1)
    return refuse(f, "segmentops: the attribute sizes does not fit the handler");
  r.start();
  ((void)r.template next<A>(), ...);
  if (r.wrong) return refuse(f, r.wrong);
  if (r.pointer < f->arguments.count + f->results.count)
    return refuse(f, "segmentops: more operands and results than the handler takes");
  i64 scalars = r.size(0);                    // n; then m, which costs little
  for (i64 i = 2; i < integers - 1; i++) scalars *= r.size(i);
  const bool shared = scalars >= SEG_PAYS_FROM && acquire(f);
  if (shared) r.mode |= thread_count(f) << 8;
  const i64 mode = r.mode;
  r.start();
  r.mode = mode;
  const WithSubnormals scope;
  const Called<A...> called{function, r.template next<A>()...};
  if (shared) release();
  if (called.result == NO_MEMORY) return refuse(f, "segmentops: no memory for scratch", RESOURCE_EXHAUSTED);
  return nullptr;
}

// Exported for each function F of the engine.
template <auto F> Error* handler(Frame* f) {
  if (f->extensions && f->extensions->type == METADATA) {
    Metadata* m = ((MetadataExtension*)f->extensions)->metadata;
    m->version.major = 0;
    m->version.minor = 1;                     // nothing here is newer
    m->traits = 0;
    return nullptr;
  }
  return handle(f, F);
}
}}}  // namespace seg::xla
