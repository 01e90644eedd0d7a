// Declares the kernels that the rows of backends.inc name. src/kernels defines them. One
// declaration keeps a row and its kernel file consistent.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle {

#define MADE(kernel_set, ...) extern const Kernels kernel_set;
#define MADE_FOR_CUDA(kernel_set, ...) MADE(kernel_set)
#define MADE_FOR_OPENCL(kernel_set, ...) MADE(kernel_set)
#include "oracle/backends.inc"
#undef MADE
#undef MADE_FOR_CUDA
#undef MADE_FOR_OPENCL

}  // namespace moracle
