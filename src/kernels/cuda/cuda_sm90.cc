// Backend "cuda-sm90". Few tokens run in gemv/, which reads the weights of each expert once. More
// tokens run in gemm_sm90/, on wgmma, and some tokens of linear layers in gemm_skinny/. The kernels
// of cuda-sm80, which read the same layout, run the rest: adapters, batched activations, act-order,
// deterministic plans.
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/gemm_skinny/skinny_plan.h"
#include "kernels/cuda/gemm_sm90/exponents.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/planned_tokens.h"

namespace moracle::cuda {
namespace {

// The matrix without kernels. Exponents are prepared here, and again after each replacement.
Result<std::unique_ptr<GroupedLinear>> make_matrix(KernelWeights&& weights, const KernelPlan& plan,
                                                   CudaDevice& device) {
  if (!has_exponents(weights)) return std::make_unique<GroupedLinear>(std::move(weights));
  const bool one_per_row = std::get<CudaForm>(plan.kernels.front().form).row_exponents;
  const Exponents exponents(weights, one_per_row);
  if (one_per_row) weights.shape = with_row_exponents(weights.shape);
  auto prepare = [exponents, &device](const KernelWeights& fresh, Stream stream) {
    return exponents.prepare(fresh, device.queue(), stream);
  };
  auto linear = std::make_unique<GroupedLinear>(std::move(weights), std::move(prepare));
  MORACLE_CHECK(linear->weights_replaced({}));
  MORACLE_CHECK(device.synchronize({}));
  return linear;
}

Error not_cuda(const Device& device) {
  return {ErrorKind::kInvalidArgument, "", "backend cuda-sm90", "a cuda device",
          "it is " + device.name()};
}

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_sm90(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device) {
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return not_cuda(device);
  MORACLE_TRY(std::unique_ptr<GroupedLinear> linear, make_matrix(std::move(weights), plan, *gpu));
  const auto tokens_of = [&](CudaForm::Kernel kernel) {
    return planned_tokens(plan, kernel, false);
  };
  // In the order of the plan.
  if (const auto tokens = tokens_of(CudaForm::Kernel::kStreamed)) {
    MORACLE_CHECK(add_quantized_linear(*linear, *gpu));
    MORACLE_CHECK(add_gemv_linear(*linear, std::min(tokens->last, kMostGemvLinearTokens), *gpu));
  }
  if (const auto tokens = tokens_of(CudaForm::Kernel::kSkinny)) {
    const int64_t last = std::min<int64_t>(tokens->last, kMostSkinnyTokens);
    MORACLE_CHECK(add_skinny_linear(*linear, tokens->first, last, *gpu));
  }
#if defined(MORACLE_WITH_CUBLASLT)
  if (const auto tokens = tokens_of(CudaForm::Kernel::kCublasLt))
    MORACLE_CHECK(add_cublaslt_blocks(*linear, tokens->first, *gpu));
#endif
  if (const auto tokens = tokens_of(CudaForm::Kernel::kWgmma))
    MORACLE_CHECK(add_wgmma_dense(*linear, tokens->first, *gpu));
  MORACLE_CHECK(add_mma(*linear, *gpu));
  return linear;
}

Result<std::vector<std::unique_ptr<FusedExperts>>> make_sm90_experts(const GroupedLinear& w13,
                                                                     const GroupedLinear& w2,
                                                                     const Plan& plan,
                                                                     Device& device) {
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return not_cuda(device);
  const KernelPlan& first = *plan.matrices[0].kernel;
  std::vector<std::unique_ptr<FusedExperts>> kernels;
  if (const auto tokens = planned_tokens(first, CudaForm::Kernel::kStreamed, true)) {
    MORACLE_TRY(kernels.emplace_back(), make_gemv_experts(w13, w2, plan, tokens->last, *gpu));
  }
  if (const auto tokens = planned_tokens(first, CudaForm::Kernel::kWgmma, true)) {
    MORACLE_TRY(kernels.emplace_back(), make_wgmma_experts(w13, w2, plan, tokens->first, *gpu));
  }
  return kernels;
}

}  // namespace moracle::cuda
