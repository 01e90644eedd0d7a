// Everything a kernel file needs to define its Kernels, which its row in oracle/backends.inc names.
#pragma once

#include "kernels/grouped_linear.h"
#include "kernels/weights/kernel_weights.h"
#include "oracle/made.h"
