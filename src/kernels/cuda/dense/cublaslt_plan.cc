#include "kernels/cuda/dense/cublaslt_plan.h"

#include "kernels/cuda/cuda_makers.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {

const char* dense_kernel_name(int64_t rows, int64_t outputs) {
  return is_few_rows(rows, outputs)
             ? "mma.sync, columns shared by the warps of a block, bf16 products, f32 sums"
             : "cuBLASLt, bf16 products, f32 sums";
}

namespace {

KernelPlan plan_cublaslt(const KernelRequest& request, const Machine&) {
  const int64_t outputs = request.shape.n;
  KernelPlan plan;
  plan.input_dtype = DType::kBF16;
  plan.kernels = {{1, dense_kernel_name(1, outputs)}};
  const bool few = is_few_rows(1, outputs);
  if (few && request.max_num_tokens <= kFewRows) return plan;
  plan.scratch_bytes = kCublasLtWorkspace;
  if (few) {
    plan.kernels[0].to_tokens = kFewRows;
    plan.kernels.push_back({kFewRows + 1, dense_kernel_name(kFewRows + 1, outputs)});
  }
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaCublasLtKernels = {cuda::plan_cublaslt, cuda::kMakeCublasLt};

}  // namespace moracle
