#include "kernels/cuda/cuda_reference_plan.h"

#include "kernels/cuda/cuda_makers.h"
#include "kernels/integer_sums.h"
#include "kernels/kernels.h"

namespace moracle {
namespace cuda {

const char* reference_kernel_name(const MatrixShape& shape, const Scheme& scheme) {
  return sums_integers(shape, scheme) ? "tiles of 16 rows, simt, exact i32 sums"
                                      : "tiles of 16 rows, simt, f32 products and sums";
}

namespace {

KernelPlan plan_reference(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.kernels = {{1, reference_kernel_name(request.shape, request.scheme)}};
  plan.deterministic = true;
  return plan;
}

}  // namespace
}  // namespace cuda

const Kernels kCudaReferenceKernels = {cuda::plan_reference, cuda::kMakeReference};

}  // namespace moracle
