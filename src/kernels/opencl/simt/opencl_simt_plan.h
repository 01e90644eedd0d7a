// Plans backends opencl-simt and opencl-vectors. Plain C++, so that builds without OpenCL can plan
// them, too.
#pragma once

#include <cstdint>

namespace moracle::opencl {

/// Up to this many rows per expert, on average, gemv.cl is faster than gemm.cl. Measured
/// on an H100 (bench/lab/opencl.md).
inline constexpr int64_t kGemvRows = 24;

}  // namespace moracle::opencl
