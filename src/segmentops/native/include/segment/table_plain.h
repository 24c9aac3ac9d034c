// What the module of the PyTorch binding exports: its calls, see plain_call.h.
#pragma once
#include "plain_call.h"
#include "threads.h"
