// The kernels that the rows of backends.inc name, which the kernels room defines: declared here, so
// that a row and its file cannot disagree.
#pragma once

#include "moracle/oracle.h"

namespace moracle {

#define MADE(kernel_set, ...) extern const Kernels kernel_set;
#define MADE_FOR_CUDA(kernel_set, ...) MADE(kernel_set)
#define PLANNED(...)
#include "oracle/backends.inc"
#undef MADE
#undef MADE_FOR_CUDA
#undef PLANNED

}  // namespace moracle
