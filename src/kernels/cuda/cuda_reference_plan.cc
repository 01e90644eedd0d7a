// Plans backend cuda-reference. Plain C++, so that builds without CUDA can plan it, too.
#include "kernels/cuda/cuda_makers.h"
#include "kernels/integer_sums.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {
namespace {

KernelPlan plan_reference(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.kernels = {{NamedKernel{sums_integers(request.shape, request.scheme)
                                   ? "tiles of 16 rows, simt, exact i32 sums"
                                   : "tiles of 16 rows, simt, f32 products and sums"}}};
  plan.deterministic = true;
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaReferenceKernels = {cuda::plan_reference, cuda::kMakeReference};

}  // namespace moracle
