// Plans backends opencl-matrix and opencl-matrix-wide. Plain C++, so that builds without OpenCL can
// plan them, too.
#pragma once

namespace moracle::opencl {

/// Lanes of a subgroup, 8 or 16, on devices without matrix engines, where plain OpenCL C stands in
/// for them. The oracle never chooses these backends there; tests do.
void emulate_matrix_engines(int lanes);
int emulated_lanes();

}  // namespace moracle::opencl
