// The functions of table_second.h as XLA FFI handlers.
#pragma once
#include "xla_handler.h"
#include "table_second.h"
