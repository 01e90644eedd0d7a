// What a kernel file needs to define its maker, which its row in oracle/backends.cc names.
#pragma once

#include "kernels/grouped_linear.h"
#include "kernels/kernel_weights.h"
#include "oracle/makers.h"
