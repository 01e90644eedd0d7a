#include "kernels/cuda/dense/cublaslt_plan.h"

#include "kernels/cuda/cuda_makers.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {

const char* dense_kernel_name(int64_t rows) {
  return rows <= kFewRows
             ? "mma.sync, columns shared by the warps of a block, bf16 products, f32 sums"
             : "cuBLASLt, bf16 products, f32 sums";
}

namespace {

KernelPlan plan_cublaslt(const KernelRequest& request, const Machine&) {
  KernelPlan plan;
  plan.input_dtype = DType::kBF16;
  plan.kernels = {{1, dense_kernel_name(1)}};
  if (request.max_num_tokens > kFewRows) {
    plan.kernels[0].to_tokens = kFewRows;
    plan.kernels.push_back({kFewRows + 1, dense_kernel_name(kFewRows + 1)});
    plan.scratch_bytes = kCublasLtWorkspace;
  }
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaCublasLtKernels = {cuda::plan_cublaslt, cuda::kMakeCublasLt};

}  // namespace moracle
