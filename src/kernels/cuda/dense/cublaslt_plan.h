// Plans backend cuda-cublaslt. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include <cstdint>

namespace moracle::cuda {

/// The own kernel serves up to this many rows, one tile of the tensor cores, and this many outputs,
/// one block of 16 per SM. It is faster than cuBLASLt there: on an H200 7.4 to 8.1 µs against 8.7
/// for 4096 → 2048, 3.4 against 5.1 for 2048 → 128. With more outputs it is slower: 9.2 to 10.7
/// against 7.6 for 2048 → 5120 (bench/lab/h200.md).
inline constexpr int64_t kFewRows = 8, kFewOutputs = 2048;
inline bool is_few_rows(int64_t rows, int64_t outputs) {
  return rows <= kFewRows && outputs <= kFewOutputs;
}

/// cuBLASLt's workspace: the size that NVIDIA recommends for Hopper. One per device.
inline constexpr int64_t kCublasLtWorkspace = int64_t{32} << 20;

/// Name in plans of the kernel for this number of rows and outputs.
const char* dense_kernel_name(int64_t rows, int64_t outputs);

}  // namespace moracle::cuda
