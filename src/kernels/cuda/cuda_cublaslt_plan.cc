#include "kernels/cuda/cuda_cublaslt_plan.h"

#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {

bool cublaslt_block_products(const MatrixShape& shape, const Scheme& scheme) {
  const auto is_128 = [](int64_t size) { return size == 128; };
  const QuantKey& w = shape.key;
  const auto& x = scheme.activation;
  return w.dtype == DType::kF8E4M3 && w.symmetric && w.scale_dtype == DType::kF32 &&
         is_128(w.group.rows) && is_128(w.group.cols) && !shape.bias && !shape.group_index &&
         shape.n % 16 == 0 && shape.k % 128 == 0 && x && x->dynamic && x->dtype == DType::kF8E4M3 &&
         x->scale_dtype == DType::kF32 && is_128(x->group.cols);
}

CublasLtBlockScratch cublaslt_block_scratch(const MatrixShape& shape) {
  const auto up = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t groups = shape.k / 128;
  CublasLtBlockScratch at{};
  at.scale_row = (groups + 3) / 4 * 4;
  at.weight_scales = up(shape.n * shape.k);
  at.row_scales = at.weight_scales + up((shape.n + 127) / 128 * at.scale_row * 4);
  at.bytes = at.row_scales + up(groups * 4 * 4);
  return at;
}

namespace {

KernelPlan plan_cublaslt(const KernelRequest& request, const Machine&) {
  KernelPlan plan;
  plan.input_dtype = DType::kBF16;
  const bool gemv = is_dense_gemv(1, request.shape.n);
  if (gemv) {
    plan.kernels.push_back({CudaForm{CudaForm::Kernel::kSplitColumns}});
    if (request.max_num_tokens <= kDenseGemvRows) return plan;
    plan.kernels.back().range.to_tokens = kDenseGemvRows;
  }
  plan.kernels.push_back(
      {CudaForm{CudaForm::Kernel::kCublasLt}, {.from_tokens = gemv ? kDenseGemvRows + 1 : 1}});
  plan.scratch_bytes = kCublasLtWorkspace;
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaCublasLtKernels = {cuda::plan_cublaslt, cuda::kMakeCublasLt};

}  // namespace moracle
