// Kernels that the rows of CUDA combine. Each `add_` appends one kernel to the list of a matrix.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/fused_experts.h"
#include "kernels/grouped_linear.h"
#include "moracle/oracle.h"

namespace moracle::cuda {

/// mma.sync (cuda_sm80.cu): grouped rows of any number, also with an activation.
Status add_mma(GroupedLinear& linear, CudaDevice& device);

/// Streams the weights for up to `most_tokens` tokens of a linear layer. Serves grouped rows that
/// 16-byte loads can read, and norms before floats. Requires few_serves.
Status add_few_linear(GroupedLinear& linear, int64_t most_tokens, CudaDevice& device);

/// The same in 8 bits with the norm and the quantization of the input in one kernel. Serves raw
/// rows and norms. Adds nothing if the kernel does not read these weights.
Status add_quantized_rows(GroupedLinear& linear, CudaDevice& device);

/// wgmma for raw rows, from `tokens` tokens on, that 16-byte loads can read. Requires wgmma_tiles,
/// but not wgmma_rounds.
Status add_wgmma_dense(GroupedLinear& linear, int64_t tokens, CudaDevice& device);

#if defined(MORACLE_WITH_CUBLASLT)
/// cuBLASLt in fp8 blocks for raw rows, from `tokens` tokens on, that vectors of 16 bytes can read
/// and write. Copies the weights into rows first, because cuBLASLt does not read layout mma16. A
/// copy costs 6 µs for 10 MB. Requires cublaslt_block_products.
Status add_cublaslt_blocks(GroupedLinear& linear, int64_t tokens, CudaDevice& device);
#endif

/// The experts of a layer for up to `most_tokens` tokens. Both matrices must outlive the result.
Result<std::unique_ptr<FusedExperts>> make_few_experts(const GroupedLinear& w13,
                                                       const GroupedLinear& w2, const Plan& plan,
                                                       int64_t most_tokens, CudaDevice& device);
/// The experts of a layer for `least_tokens` tokens and more, likewise.
Result<std::unique_ptr<FusedExperts>> make_wgmma_experts(const GroupedLinear& w13,
                                                         const GroupedLinear& w2, const Plan& plan,
                                                         int64_t least_tokens, CudaDevice& device);

}  // namespace moracle::cuda
