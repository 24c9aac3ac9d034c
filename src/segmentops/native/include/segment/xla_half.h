// Which buffers are float16 and bfloat16. Included before a table, this file makes handlers of its functions for both.
#pragma once
#include "half.h"
#include "xla_handler.h"

namespace seg { namespace xla { namespace {

template <> struct Holds<float16> { static bool type(Type t) { return t == F16; } };
template <> struct Holds<bfloat16> { static bool type(Type t) { return t == BF16; } };
}}}  // namespace seg::xla
