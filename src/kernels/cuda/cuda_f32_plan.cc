#include "kernels/cuda/cuda_f32_plan.h"

#include "kernels/cuda/cuda_makers.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {
namespace {

// The two kernels add in different orders, so a deterministic plan uses only one of them.
KernelPlan plan_f32(const KernelRequest& request, const Machine&) {
  KernelPlan plan;
  plan.input_dtype = DType::kBF16;
  plan.deterministic = request.deterministic;
  if (!request.deterministic) {
    plan.kernels.push_back({NamedKernel{"GEMV, simt, f32 products and sums"}});
    if (request.max_num_tokens <= kDenseGemvF32Rows) return plan;
    plan.kernels.back().range.to_tokens = kDenseGemvF32Rows;
  }
  plan.kernels.push_back(
      {NamedKernel{"mma.sync, tiles of 64 rows and 32 outputs, three bf16 of a weight"},
       {.from_tokens = request.deterministic ? 1 : kDenseGemvF32Rows + 1}});
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaF32Kernels = {cuda::plan_f32, cuda::kMakeF32};

}  // namespace moracle
