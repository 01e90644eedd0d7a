#include "kernels/opencl/opencl_reference_plan.h"

#include "kernels/integer_sums.h"
#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"

namespace moracle {
namespace opencl {

const char* reference_kernel_name(const MatrixShape& shape, const Scheme& scheme) {
  return sums_integers(shape, scheme) ? "one output per work-item, exact i32 sums"
                                      : "one output per work-item, f32 products and sums";
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
}  // namespace opencl

const Kernels kOpenClReferenceKernels = {opencl::plan_reference, opencl::kMakeReference};

}  // namespace moracle
