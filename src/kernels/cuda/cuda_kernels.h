// Kernels of the CUDA backends. Each `add_` function appends one kernel to the list of a matrix.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/fused_experts.h"
#include "kernels/grouped_linear.h"
#include "moracle/oracle.h"

namespace moracle::cuda {

/// mma.sync (cuda_sm80.cu): any number of grouped rows, with or without a fused activation.
Status add_mma(GroupedLinear& linear, CudaDevice& device);

/// GEMV for up to `most_tokens` tokens of a linear layer. Serves grouped rows that 16-byte loads
/// can read, and the norm before the layer if activations are floats. Requires gemv_serves.
Status add_gemv_linear(GroupedLinear& linear, int64_t most_tokens, CudaDevice& device);

/// GEMV on 8-bit codes, with the norm and the quantization of the input in the same kernel. Serves
/// raw rows and norms. Adds nothing if the kernel does not read these weights.
Status add_quantized_linear(GroupedLinear& linear, CudaDevice& device);

/// Skinny GEMM for `first` to `last` tokens, for raw rows that 16-byte loads can read. Requires
/// skinny_serves.
Status add_skinny_linear(GroupedLinear& linear, int64_t first, int64_t last, CudaDevice& device);

/// wgmma from `tokens` tokens on, for raw rows that 16-byte loads can read. Requires wgmma_serves,
/// and activations whose wgmma_input is codes.
Status add_wgmma_dense(GroupedLinear& linear, int64_t tokens, CudaDevice& device);

#if defined(MORACLE_WITH_CUBLASLT)
/// cuBLASLt on block-scaled fp8 from `tokens` tokens on, for raw rows that 16-byte vectors can read
/// and write. Copies the weights into rows first, because cuBLASLt does not read layout mma16. A
/// copy costs 6 µs for 10 MB. Requires cublaslt_block_products.
Status add_cublaslt_blocks(GroupedLinear& linear, int64_t tokens, CudaDevice& device);
#endif

/// The experts of a layer for up to `most_tokens` tokens. Both matrices must outlive the result.
Result<std::unique_ptr<FusedExperts>> make_gemv_experts(const GroupedLinear& w13,
                                                        const GroupedLinear& w2, const Plan& plan,
                                                        int64_t most_tokens, CudaDevice& device);
/// The experts of a layer for `least_tokens` tokens and more. Both matrices must outlive the
/// result.
Result<std::unique_ptr<FusedExperts>> make_wgmma_experts(const GroupedLinear& w13,
                                                         const GroupedLinear& w2, const Plan& plan,
                                                         int64_t least_tokens, CudaDevice& device);

}  // namespace moracle::cuda
