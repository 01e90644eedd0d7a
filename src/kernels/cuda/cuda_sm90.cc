// Backend "cuda-sm90". Few tokens run in decode/, which streams the weights of each expert once,
// more tokens in gemm_sm90/, on wgmma. All else runs in the kernels of cuda-sm80, which read the
// same layout: adapters, batched activations, act-order, deterministic plans.
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/decode/few_experts.h"
#include "kernels/cuda/decode/few_linear.h"
#include "kernels/cuda/dense/cublaslt_blocks.h"
#include "kernels/cuda/dense/cublaslt_plan.h"
#include "kernels/cuda/dense/quantized_rows.h"
#include "kernels/cuda/gemm_sm90/exponents.h"
#include "kernels/cuda/gemm_sm90/wgmma_dense.h"
#include "kernels/cuda/gemm_sm90/wgmma_experts.h"

namespace moracle::cuda {
namespace {

class FewOrMany : public FusedExperts {
 public:
  FewOrMany(std::unique_ptr<FusedExperts> few, std::unique_ptr<FusedExperts> many,
            int64_t few_tokens)
      : few_(std::move(few)), many_(std::move(many)), few_tokens_(few_tokens) {}

  Status run(const ExpertsCall& call, const MoeScratch& scratch, Stream stream) override {
    return kernels_for(call.x.rows).run(call, scratch, stream);
  }
  Rows prepared_form(int64_t num_tokens) const override {
    return kernels_for(num_tokens).prepared_form(num_tokens);
  }
  Status prepare(const Matrix& x, int64_t num_tokens, const Rows& to, Stream stream) override {
    return kernels_for(num_tokens).prepare(x, num_tokens, to, stream);
  }

 private:
  FusedExperts& kernels_for(int64_t num_tokens) const {
    return num_tokens <= few_tokens_ ? *few_ : *many_;
  }
  std::unique_ptr<FusedExperts> few_, many_;  // null if the plan has no such tokens
  int64_t few_tokens_;
};

// The matrix without kernels. Exponents are prepared here, and again after each replacement.
Result<std::unique_ptr<GroupedLinear>> make_matrix(KernelWeights&& weights, const KernelPlan& plan,
                                                   CudaDevice& device) {
  if (!has_exponents(weights)) return std::make_unique<GroupedLinear>(std::move(weights));
  const bool one_per_row =
      plan.fused.any() && has_row_exponents(weights.shape, weights.scheme, plan.activates);
  const Exponents exponents(weights, one_per_row);
  if (one_per_row) weights.shape = with_row_exponents(weights.shape);
  const auto prepare = [exponents, &device](const KernelWeights& fresh, Stream stream) {
    return exponents.prepare(fresh, device.queue(), stream);
  };
  auto linear = std::make_unique<GroupedLinear>(std::move(weights), prepare);
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
  // In the order of the plan.
  if (plan.linear_up_to > 0) {
    MORACLE_CHECK(add_quantized_rows(*linear, *gpu));
    MORACLE_CHECK(add_few_linear(*linear, plan.linear_up_to, *gpu));
  }
#if defined(MORACLE_WITH_CUBLASLT)
  if (const int64_t tokens = cublaslt_block_tokens(plan); tokens > 0)
    MORACLE_CHECK(add_cublaslt_blocks(*linear, tokens, *gpu));
#endif
  if (plan.dense_from > 0) MORACLE_CHECK(add_wgmma_dense(*linear, plan.dense_from, *gpu));
  MORACLE_CHECK(add_mma(*linear, *gpu));
  return linear;
}

Result<std::unique_ptr<FusedExperts>> make_sm90_experts(const GroupedLinear& w13,
                                                        const GroupedLinear& w2, const Plan& plan,
                                                        Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return not_cuda(device);
  const FusedTokens& tokens = plan.matrices[0].kernel.fused;
  std::unique_ptr<FusedExperts> few, many;
  if (tokens.up_to > 0) {
    MORACLE_TRY(few, make_few_experts(w13, w2, plan, *gpu));
  }
  if (tokens.from > 0) {
    MORACLE_TRY(many, make_wgmma_experts(w13, w2, plan, *gpu));
  }
  return std::unique_ptr<FusedExperts>(
      new FewOrMany(std::move(few), std::move(many), tokens.up_to));
}

}  // namespace moracle::cuda
