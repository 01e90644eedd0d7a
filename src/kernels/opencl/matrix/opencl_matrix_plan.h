// Plans backends opencl-matrix and opencl-matrix-wide. Plain C++, so that builds without OpenCL can
// plan them, too.
#pragma once

#include "moracle/oracle.h"

namespace moracle::opencl {

/// True if both sides are integer codes, which the engines multiply as int8. Other codes become
/// bf16.
bool multiplies_integers(const MatrixShape& shape, const Scheme& scheme);

/// Name of the kernel in plans.
const char* matrix_kernel_name(const MatrixShape& shape, const Scheme& scheme);

/// Lanes of a subgroup, 8 or 16, on devices without matrix engines, where plain OpenCL C stands in
/// for them. The oracle never chooses these backends there; tests do.
void emulate_matrix_engines(int lanes);
int emulated_lanes();

}  // namespace moracle::opencl
