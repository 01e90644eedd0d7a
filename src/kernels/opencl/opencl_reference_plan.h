// Plans backend opencl-reference. Plain C++, so that builds without OpenCL can plan it, too.
#pragma once

#include "moracle/oracle.h"

namespace moracle::opencl {

/// Name of the kernel in plans.
const char* reference_kernel_name(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle::opencl
