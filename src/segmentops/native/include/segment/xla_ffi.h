// The binary interface of XLA's foreign functions: what of jaxlib/include/xla/ffi/api/c_api.h a handler here uses.
// Names are shortened, the layout is theirs.
#pragma once
#include "vector.h"

namespace seg { namespace xla { namespace {

typedef u64 size_t;

struct Extension { size_t size; i32 type; Extension* next; };
struct Version { size_t size; Extension* extensions; i32 major, minor; };
struct Metadata { size_t size; Version version; u32 traits; i64 state_type; };
struct MetadataExtension { Extension base; Metadata* metadata; };
constexpr i32 METADATA = 1;                   // type of that extension

enum Type : i32 { S32 = 4, S64 = 5, F16 = 10, F32 = 11, F64 = 12, BF16 = 16 };
struct Buffer { size_t size; Extension* extensions; Type type; void* data; i64 rank; i64* dims; };
struct Buffers { size_t size; Extension* extensions; i64 count; i32* kinds; Buffer** items; };
struct Array { Type type; size_t count; const i64* data; };
struct Attributes { size_t size; Extension* extensions; i64 count; i32* kinds; void** names; Array** items; };

struct Context;
struct Error;
struct ErrorArgs { size_t size; Extension* extensions; const char* message; i32 code; };
struct DestroyArgs { size_t size; Extension* extensions; Error* error; };
constexpr i32 INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8;
struct ScheduleArgs { size_t size; Extension* extensions; Context* context; void (*task)(void*); void* data; };
struct NumThreadsArgs { size_t size; Extension* extensions; Context* context; i64* threads; };

struct Api {
  size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorArgs*);
  void (*error_message)(void*);
  void (*error_destroy)(DestroyArgs*);
  void* unused[8];                            // handlers, streams, types, contexts, states, memory
  Error* (*schedule)(ScheduleArgs*);
  Error* (*num_threads)(NumThreadsArgs*);
};
struct Frame {
  size_t size;
  Extension* extensions;
  const Api* api;
  Context* context;
  i32 stage;
  Buffers arguments, results;
  Attributes attributes;
};

}}}  // namespace seg::xla
