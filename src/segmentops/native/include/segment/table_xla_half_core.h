// The functions of table_core.h for float16 and bfloat16 as XLA FFI handlers.
#pragma once
#include "xla_half.h"
#include "table_core.h"
