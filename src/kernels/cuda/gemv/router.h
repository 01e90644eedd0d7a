// Router GEMV for few tokens: the norm before it, its logits, and the choice of experts in one
// kernel.
#pragma once

#include "kernels/cuda/gemv/dense_bf16.h"
#include "kernels/linear_call.h"

namespace moracle::cuda {

/// Most outputs of a linear layer that may be a router of gemv_router.
inline constexpr int64_t kMostRouterOutputs = 512;
/// Most tokens of gemv_router. Each CTA normalizes all of them: with eight, a decode step of
/// Qwen3-30B-A3B on an H200 was 2 % slower than by separate kernels.
inline constexpr int64_t kMostRouterTokens = 4;

/// True if route_gemv routes like this. Depends on shapes and the routing alone.
bool gemv_router_serves(const LinearCall& call);
/// True if the kernel computes the norm of the call, too. Others run Ops::add_rms_norm before it.
bool gemv_router_norms(const AddRmsNorm& norm);

/// `product`: x and the logits, as for multiply_dense_bf16. `norm`: null, or gemv_router_norms.
/// `arrived`: a counter in device memory, zero before and after the kernel. Calls that share a
/// counter must not overlap.
Status route_gemv(const Queue& queue, const DenseBf16& product, const LinearCall::Route& to,
                  const AddRmsNorm* norm, unsigned* arrived, Stream stream);

/// Loads the kernels, which graph capture could not do. The GPU of `queue` is current.
Status load_gemv_router();

}  // namespace moracle::cuda
