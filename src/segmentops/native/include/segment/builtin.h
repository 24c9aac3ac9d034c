// A native function as a Python built-in: a call costs 0.1 us where ctypes takes 0.7.
//
// `enter` is a METH_FASTCALL function (stable ABI since Python 3.10). Its `self` is an int, the address of a Target; its
// arguments are ints, or None for a null pointer. Every parameter of the engine's functions is a 64-bit integer or an
// address, so their number alone says how to call one, which is what ctypes relies on, too.
#pragma once
#include "scratch.h"

namespace seg { namespace {

// Functions and objects of the running interpreter, by address: there is no Python.h here.
struct Interpreter {
  i64 (*as_int)(void* object);
  void* (*make_int)(i64 value);
  void* (*error)();
  void* (*release)();
  void (*acquire)(void* state);
  void (*raise)(void* type, const char* message);
  void** type_error;
  void* none;
  void* (*attribute)(void* object, void* name);
  int (*set_attribute)(void* object, void* name, void* value);
  void* (*call)(void* function, void* const* args, i64 count, void* keywords);
  void* (*call_method)(void* name, void* const* args, i64 count, void* keywords);
  void* (*type_of)(void* object);
  int (*is_true)(void* object);
  i64 (*length)(void* tuple);
  void* (*item)(void* tuple, i64 at);
  void* (*make_tuple)(i64 length);
  int (*set_item)(void* tuple, i64 at, void* owned);
  void* (*find)(void* dict, void* key);
  void (*keep)(void* object);
  void (*drop)(void* object);
  void (*forget_error)();
  void* (*no_memory)();                       // raises MemoryError
};
struct Target {
  const void* function;
  i64 arguments;
  i64 size;                                   // which argument is the number of elements
};

// Sizes of structures, and where their fields are, for Python, which fills them in: it compares these with its own.
struct Place {
  const char* name;
  i64 at;
};
#define SEG_SIZE(S) Place{#S, sizeof(S)}
#define SEG_AS(S, name, field) Place{#S "." name, __builtin_offsetof(S, field)}
#define SEG_AT(S, field) SEG_AS(S, #field, field)
#define SEG_END Place{nullptr, 0}

constexpr Place LAYOUT[] = {
  SEG_SIZE(Interpreter), SEG_AT(Interpreter, as_int), SEG_AT(Interpreter, make_int), SEG_AT(Interpreter, error),
  SEG_AT(Interpreter, release), SEG_AT(Interpreter, acquire), SEG_AT(Interpreter, raise),
  SEG_AT(Interpreter, type_error), SEG_AT(Interpreter, none), SEG_AT(Interpreter, attribute),
  SEG_AT(Interpreter, set_attribute), SEG_AT(Interpreter, call), SEG_AT(Interpreter, call_method),
  SEG_AT(Interpreter, type_of), SEG_AT(Interpreter, is_true), SEG_AT(Interpreter, length), SEG_AT(Interpreter, item),
  SEG_AT(Interpreter, make_tuple), SEG_AT(Interpreter, set_item), SEG_AT(Interpreter, find), SEG_AT(Interpreter, keep),
  SEG_AT(Interpreter, drop), SEG_AT(Interpreter, forget_error),
  SEG_AT(Interpreter, no_memory),
  SEG_SIZE(Target), SEG_AT(Target, function), SEG_AT(Target, arguments), SEG_AT(Target, size), SEG_END,
};
i64 layout() { return (i64)LAYOUT; }

constexpr i64 BUSY = 8192;                    // elements from which a call releases the GIL
constexpr int MOST = 20;                      // arguments

const Interpreter* python;
i64 attach(const Interpreter* interpreter) { python = interpreter; return -1; }

template <class T, T... K> struct Numbers {};
template <int> using Argument = i64;
template <int... K> SEG_INLINE i64 invoke(const void* f, const i64* a, Numbers<int, K...>) {
  return ((i64(*)(Argument<K>...))f)(a[K]...);
}
template <int N> i64 invoke(const void* f, const i64* a, i64 n) {
  if (n == N) return invoke(f, a, __make_integer_seq<Numbers, int, N>());
  if constexpr (N < MOST) return invoke<N + 1>(f, a, n);
  return -1;
}

void* enter(void* self, void* const* args, i64 count) {
  const Target* t = (const Target*)python->as_int(self);
  if (count != t->arguments) {
    python->raise(*python->type_error, "native function: wrong number of arguments");
    return nullptr;
  }
  i64 a[MOST];
  for (i64 k = 0; k < count; k++) {
    a[k] = args[k] == python->none ? 0 : python->as_int(args[k]);
    if (a[k] == -1 && python->error()) return nullptr;
  }
  i64 result;
  if (a[t->size] < BUSY) {
    result = invoke<4>(t->function, a, count);
  } else {
    void* state = python->release();
    result = invoke<4>(t->function, a, count);
    python->acquire(state);
  }
  return result == NO_MEMORY ? python->no_memory() : python->make_int(result);
}
}}  // namespace seg
