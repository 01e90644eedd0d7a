#include "kernels/opencl/opencl_lines_plan.h"

#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/groups.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl {

bool sums_whole_rows(const MatrixShape& shape, const Scheme& scheme) {
  return scheme.activation && scheme.activation->dtype == DType::kI8 &&
         shape.key.dtype == DType::kI8 && moracle::num_groups(shape) == 1 &&
         num_groups(*scheme.activation, shape.k) == 1;
}

const char* lines_kernel_name(const MatrixShape& shape, const Scheme& scheme) {
  return sums_whole_rows(shape, scheme) ? "lines of 16 rows, f32 fma, exact sums"
                                        : "lines of 16 rows, f32 fma";
}

namespace {

KernelPlan plan_lines(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.kernels = {{1, lines_kernel_name(request.shape, request.scheme)}};
  plan.deterministic = true;
  return plan;
}

}  // namespace
}  // namespace opencl

const Kernels kOpenClLinesKernels = {opencl::plan_lines, opencl::kMakeLines};

}  // namespace moracle
