// Plans backend cuda-cublaslt. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include <cstdint>

namespace moracle::cuda {

/// Maximum rows of the kernel for few rows: one tile of the tensor cores. With two, cuBLASLt is
/// faster (bench/lab).
inline constexpr int64_t kFewRows = 8;

/// cuBLASLt's workspace: the size that NVIDIA recommends for Hopper. One per device.
inline constexpr int64_t kCublasLtWorkspace = int64_t{32} << 20;

/// Name in plans of the kernel for this number of rows.
const char* dense_kernel_name(int64_t rows);

}  // namespace moracle::cuda
