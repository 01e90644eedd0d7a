// Plans backend cuda-sm90: kernels for few tokens, then those of cuda-sm80.
#include <algorithm>

#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/decode/few_plan.h"
#include "kernels/cuda/gemm_sm80/mma_plan.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {
namespace {

// Returns the kernels for 1 to `last` tokens. GEMM 2 has no activation.
std::vector<KernelUse> few_kernels(const KernelRequest& request, int64_t last) {
  std::vector<KernelUse> uses;
  for (int64_t tokens = 1; tokens <= last; ++tokens) {
    const bool adds =
        request.activation == nullptr && few_adds(tokens, request.rows_per_token, request.shape.n);
    const int choice = adds ? (tokens <= 8 ? 0 : 1)
                            : few_choice(tokens, request.rows_per_token, request.num_experts);
    std::string name = few_kernel_name(request.scheme, choice == 0 ? 8 : 16, adds);
    if (uses.empty() || uses.back().name != name) uses.push_back({tokens, std::move(name)});
    uses.back().to_tokens = tokens;
  }
  return uses;
}

KernelPlan plan_sm90(const KernelRequest& request, const Machine& machine) {
  KernelPlan plan = plan_mma(request, machine);
  if (!request.fuses || !few_serves(request.shape, request.scheme)) return plan;
  // GEMM 1 must apply the activation.
  if (request.activation != nullptr && !plan.activates) return plan;
  plan.fused_tokens = few_most_tokens(request);
  std::vector<KernelUse> uses = few_kernels(request, plan.fused_tokens);
  for (KernelUse& use : plan.kernels) {
    if (use.to_tokens != 0 && use.to_tokens <= plan.fused_tokens) continue;
    use.from_tokens = std::max(use.from_tokens, plan.fused_tokens + 1);
    if (use.from_tokens <= request.max_num_tokens) uses.push_back(std::move(use));
  }
  if (plan.fused_tokens == request.max_num_tokens) uses.back().to_tokens = 0;
  plan.kernels = std::move(uses);
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaSm90Kernels = {cuda::plan_sm90, cuda::kMakeSm90, cuda::kFuseSm90};

}  // namespace moracle
