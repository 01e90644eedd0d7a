// Plans backend cuda-reference. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include "moracle/oracle.h"

namespace moracle::cuda {

/// Name of the kernel in plans.
const char* reference_kernel_name(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle::cuda
