// The functions of table_core.h for float16 and bfloat16.
#pragma once
#include "half.h"
#include "table_core.h"
