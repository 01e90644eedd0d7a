// A linear layer in fp8 blocks whose many rows cuBLASLt multiplies.
#pragma once

#if defined(MORACLE_WITH_CUBLASLT)
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Wraps `others`, kernels on the same weights. From `tokens` tokens on, run_dense copies the
/// weights into rows, because cuBLASLt does not read layout mma16, and calls the library. A copy of
/// a call costs 6 µs for 10 MB. Rows that vectors of 16 bytes cannot read or write, and run, go to
/// `others`. Requires cublaslt_block_products.
Result<std::unique_ptr<GroupedLinear>> make_cublaslt_blocks(std::unique_ptr<GroupedLinear> others,
                                                            int64_t tokens, CudaDevice& device);

}  // namespace moracle::cuda
#endif
