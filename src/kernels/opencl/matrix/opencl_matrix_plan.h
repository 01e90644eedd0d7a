// Plans backends opencl-matrix and opencl-matrix-wide. Plain C++, so that builds without OpenCL can
// plan them, too.
#pragma once

namespace moracle::opencl {

/// Emulates matrix engines in plain OpenCL C, with subgroups of 8 or 16 lanes, on devices without
/// them. The oracle never chooses these backends there; tests do.
void emulate_matrix_engines(int lanes);
int emulated_lanes();

}  // namespace moracle::opencl
