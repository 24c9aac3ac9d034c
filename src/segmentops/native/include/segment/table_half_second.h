// The functions of table_second.h for float16 and bfloat16.
#pragma once
#include "half.h"
#include "table_second.h"
