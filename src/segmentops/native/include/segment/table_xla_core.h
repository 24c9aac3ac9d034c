// The functions of table_core.h as XLA FFI handlers.
#pragma once
#include "xla_handler.h"
#include "table_core.h"
