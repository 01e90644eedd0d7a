// Plans backend opencl-reference. Plain C++, so that builds without OpenCL can plan it, too.
#include "kernels/integer_sums.h"
#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"

namespace moracle {
namespace opencl {

namespace {

KernelPlan plan_reference(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.kernels = {{NamedKernel{sums_integers(request.shape, request.scheme)
                                   ? "one output per work-item, exact i32 sums"
                                   : "one output per work-item, f32 products and sums"}}};
  plan.deterministic = true;
  return plan;
}

}  // namespace
}  // namespace opencl

const Kernels kOpenClReferenceKernels = {opencl::plan_reference, opencl::kMakeReference};

}  // namespace moracle
