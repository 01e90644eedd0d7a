// Plans backend opencl-lines. Plain C++, so that builds without OpenCL can plan it, too.
#pragma once

#include "moracle/oracle.h"

namespace moracle::opencl {

/// True if sums of codes stay integers to the end of the row: one scale for all columns on both
/// sides.
bool sums_whole_rows(const MatrixShape& shape, const Scheme& scheme);

/// Name of the kernel in plans.
const char* lines_kernel_name(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle::opencl
