// Plans backends opencl-lines and opencl-vectors. Plain C++, so that builds without OpenCL can plan
// them, too.
#pragma once

#include <cstdint>

namespace moracle::opencl {

/// Up to this many rows per expert, on average, few_rows.cl is faster than many_rows.cl. Measured
/// on an H100 (bench/lab/opencl.md).
inline constexpr int64_t kFewRows = 24;

}  // namespace moracle::opencl
