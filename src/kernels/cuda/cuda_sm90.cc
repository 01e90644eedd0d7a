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

  Status run(const ExpertsCall& call, const int32_t* expert_map, const MoeScratch& scratch,
             Stream stream) override {
    return kernels_for(call.num_tokens()).run(call, expert_map, scratch, stream);
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

// Kernels of cuda-sm80 for weights whose exponents are prepared.
Result<std::unique_ptr<GroupedLinear>> make_with_exponents(KernelWeights&& weights,
                                                           const KernelPlan& plan, Device& device) {
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr || !has_exponents(weights)) return make_sm80(std::move(weights), plan, device);
  const bool one_per_row =
      plan.fused.any() && has_row_exponents(weights.shape, weights.scheme, plan.activates);
  const Exponents exponents(weights, one_per_row);
  MORACLE_CHECK(exponents.prepare(weights, gpu->queue(), {}));
  MORACLE_CHECK(device.synchronize());
  if (one_per_row) weights.shape = with_row_exponents(weights.shape);
  MORACLE_TRY(std::unique_ptr<GroupedLinear> kernels, make_sm80(std::move(weights), plan, device));
  return make_prepared(std::move(kernels), exponents, *gpu);
}

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_sm90(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device) {
  MORACLE_TRY(std::unique_ptr<GroupedLinear> others,
              make_with_exponents(std::move(weights), plan, device));
  auto& gpu = dynamic_cast<CudaDevice&>(device);
  if (plan.dense_from > 0) {
    MORACLE_TRY(others, make_wgmma_dense(std::move(others), gpu));
  }
#if defined(MORACLE_WITH_CUBLASLT)
  if (const int64_t tokens = cublaslt_block_tokens(plan); tokens > 0) {
    MORACLE_TRY(others, make_cublaslt_blocks(std::move(others), tokens, gpu));
  }
#endif
  if (plan.linear_up_to == 0) return others;
  MORACLE_TRY(others, make_few_linear(std::move(others), plan.linear_up_to, gpu));
  return make_quantized_rows(std::move(others), gpu);
}

Result<std::unique_ptr<FusedExperts>> make_sm90_experts(const GroupedLinear& w13,
                                                        const GroupedLinear& w2, const Plan& plan,
                                                        Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr)
    return Error{ErrorKind::kInvalidArgument, "", "backend cuda-sm90", "a cuda device",
                 "it is " + device.name()};
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
