// A linear layer in fp8 blocks whose many rows cuBLASLt multiplies.
#pragma once

#if defined(MORACLE_WITH_CUBLASLT)
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Adds a kernel for raw rows, from `tokens` tokens on, that vectors of 16 bytes can read and
/// write. It copies the weights into rows, because cuBLASLt does not read layout mma16, and calls
/// the library. A copy of a call costs 6 µs for 10 MB. Requires cublaslt_block_products.
Status add_cublaslt_blocks(GroupedLinear& linear, int64_t tokens, CudaDevice& device);

}  // namespace moracle::cuda
#endif
