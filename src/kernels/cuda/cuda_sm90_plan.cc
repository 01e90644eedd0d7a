// Plans backend cuda-sm90: kernels for few tokens, wgmma for more, and those of cuda-sm80 for what
// both leave. cuBLASLt multiplies many tokens of linear layers in fp8 blocks.
#include <algorithm>

#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/gemm_sm80/mma_plan.h"
#include "kernels/cuda/gemm_sm90/wgmma_plan.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/kernels.h"
#include "oracle/machine/libraries.h"

namespace moracle {
namespace cuda {
namespace {

// Adds a kernel for one more number of tokens.
void extend(std::vector<KernelUse>& uses, int64_t tokens, std::string name) {
  if (uses.empty() || uses.back().name != name) uses.push_back({tokens, std::move(name)});
  uses.back().to_tokens = tokens;
}

// GEMM 2 has no activation.
void add_few(const KernelRequest& request, int64_t last, std::vector<KernelUse>& uses) {
  for (int64_t tokens = 1; tokens <= last; ++tokens) {
    const bool adds = request.activation == nullptr &&
                      gemv_combines(tokens, request.rows_per_token, request.shape.n);
    const int choice = adds ? (tokens <= 8 ? 0 : 1)
                            : gemv_choice(tokens, request.rows_per_token, request.num_experts);
    extend(uses, tokens, gemv_kernel_name(request.scheme, choice == 0 ? 8 : 16, adds));
  }
}

void add_wgmma(const KernelRequest& request, int64_t first, int64_t end,
               std::vector<KernelUse>& uses) {
  const int tiles = wgmma_tiles(request.shape, request.scheme);
  const auto choice = [&](int64_t tokens) {
    if (request.linear) return wgmma_dense_choice(tokens);
    return wgmma_choice(tiles, tokens * request.rows_per_token, request.num_experts);
  };
  for (int64_t tokens = first; tokens <= end;) {
    const int tile = choice(tokens);
    int64_t last = tokens, above = end + 1;  // search the end of this tile
    while (above - last > 1) {
      const int64_t middle = last + (above - last) / 2;
      (choice(middle) == tile ? last : above) = middle;
    }
    uses.push_back({tokens, wgmma_kernel_name(request.scheme, kWgmmaTiles[tile].rows), last});
    tokens = last + 1;
  }
}

// Adds the kernels of `plan` for the tokens from `first` to `last`.
void add_rest(std::vector<KernelUse>& uses, int64_t first, int64_t last, KernelPlan& plan) {
  for (KernelUse& use : plan.kernels) {
    use.from_tokens = std::max(use.from_tokens, first);
    use.to_tokens = use.to_tokens == 0 ? last : std::min(use.to_tokens, last);
    if (use.from_tokens <= use.to_tokens) uses.push_back(std::move(use));
  }
}

// Few tokens of a linear layer stream its weights, too. More tokens run on wgmma, and many in fp8
// blocks in cuBLASLt.
KernelPlan plan_linear(const KernelRequest& request, const Machine& machine, KernelPlan plan) {
  if (request.deterministic || !gemv_serves(request.shape, request.scheme)) return plan;
  std::vector<KernelUse> uses;
  plan.linear_up_to = std::min(kMostGemvLinearTokens, request.max_num_tokens);
  for (int64_t tokens = 1; tokens <= plan.linear_up_to; ++tokens)
    extend(uses, tokens, gemv_kernel_name(request.scheme, tokens <= 8 ? 8 : 16, false));
  const bool many = wgmma_tiles(request.shape, request.scheme) > 0 && !wgmma_rounds(request.scheme);
  if (many && plan.linear_up_to < request.max_num_tokens) {
    plan.dense_from = plan.linear_up_to + 1;
    int64_t last = request.max_num_tokens;
    const bool library = missing(kCublasLtBlocks, machine.libraries) == Library::kNone &&
                         last >= kLeastCublasLtBlockTokens &&
                         cublaslt_block_products(request.shape, request.scheme);
    if (library) last = kLeastCublasLtBlockTokens - 1;
    add_wgmma(request, plan.dense_from, last, uses);
    if (library) {
      uses.push_back({last + 1, kCublasLtBlocksName});
      plan.scratch_bytes = std::max(
          plan.scratch_bytes, kCublasLtWorkspace + cublaslt_block_scratch(request.shape).bytes);
    }
  } else {
    add_rest(uses, plan.linear_up_to + 1, request.max_num_tokens, plan);
  }
  uses.back().to_tokens = 0;
  plan.kernels = std::move(uses);
  plan.deterministic = false;  // more tokens add in another order
  return plan;
}

// Kernels for all stages of a layer of experts. `plan`: those of cuda-sm80.
KernelPlan plan_fused(const KernelRequest& request, KernelPlan plan) {
  std::vector<KernelUse> uses;
  int64_t least = wgmma_least_tokens(request);
  if (gemv_serves(request.shape, request.scheme)) {
    if (least > 0) least = std::max(least, gemv_before_wgmma(request) + 1);
    plan.fused.up_to = gemv_most_tokens(request, least);
    add_few(request, plan.fused.up_to, uses);
  }
  if (least > 0 && least <= request.max_num_tokens) plan.fused.from = least;
  // Numbers of tokens between, as cuda-sm80 plans them.
  const int64_t last = plan.fused.from > 0 ? plan.fused.from - 1 : request.max_num_tokens;
  add_rest(uses, plan.fused.up_to + 1, last, plan);
  if (plan.fused.from > 0) add_wgmma(request, plan.fused.from, request.max_num_tokens, uses);
  // What other tokens chose decides which warp adds which columns of a token.
  if (plan.fused.any()) plan.deterministic = false;
  uses.back().to_tokens = 0;
  plan.kernels = std::move(uses);
  return plan;
}

// The same request for another shape and scheme.
KernelRequest request_with(const MatrixShape& shape, const Scheme& scheme,
                           const KernelRequest& request) {
  return {.shape = shape,
          .scheme = scheme,
          .deterministic = request.deterministic,
          .bf16_activations = request.bf16_activations,
          .max_rows = request.max_rows,
          .activation = request.activation,
          .max_num_tokens = request.max_num_tokens,
          .min_num_tokens = request.min_num_tokens,
          .rows_per_token = request.rows_per_token,
          .expert_rows = request.expert_rows,
          .num_experts = request.num_experts,
          .fuses = request.fuses,
          .linear = request.linear};
}

KernelPlan plan_sm90(const KernelRequest& request, const Machine& machine) {
  KernelPlan plan = plan_mma(request, machine);
  if (request.linear) return plan_linear(request, machine, std::move(plan));
  // GEMM 1 must apply the activation.
  if (!request.fuses || (request.activation != nullptr && !plan.activates)) return plan;
  if (!has_row_exponents(request.shape, request.scheme, request.activation != nullptr))
    return plan_fused(request, std::move(plan));
  const MatrixShape shape = with_row_exponents(request.shape);
  const Scheme scheme = product_scheme(shape, request.scheme);
  // Tiles read the same weights, but keep the exponents of 32 columns of activations.
  KernelPlan fused = plan_fused(request_with(shape, scheme, request),
                                plan_mma(request_with(shape, request.scheme, request), machine));
  if (!fused.fused.any()) return plan;  // the weights stay as they are
  fused.product_bits = kRowExponentBits, fused.product_group = shape.k;
  return fused;
}

}  // namespace
}  // namespace cuda

#if defined(MORACLE_WITH_SM90A)
const Kernels kCudaSm90Kernels = {cuda::plan_sm90, cuda::make_sm90, cuda::make_sm90_experts};
#else  // code for other architectures has kernels without a body
const Kernels kCudaSm90Kernels = {cuda::plan_sm90, nullptr, nullptr};
#endif

}  // namespace moracle
