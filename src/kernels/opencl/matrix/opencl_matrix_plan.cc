#include "kernels/opencl/matrix/opencl_matrix_plan.h"

#include <atomic>

#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/groups.h"

namespace moracle {
namespace opencl {
namespace {

std::atomic<int> lanes_of_emulation = 16;

KernelPlan plan_matrix(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.kernels = {{1, matrix_kernel_name(request.shape, request.scheme)}};
  plan.deterministic = true;
  return plan;
}

}  // namespace

bool multiplies_integers(const MatrixShape& shape, const Scheme& scheme) {
  const DType weight = shape.key.dtype;
  return scheme.activation && scheme.activation->dtype == DType::kI8 &&
         (weight == DType::kI8 || weight == DType::kI4);
}

const char* matrix_kernel_name(const MatrixShape& shape, const Scheme& scheme) {
  if (!multiplies_integers(shape, scheme)) return "matrix engines, bf16 products, f32 sums";
  return num_groups(shape) <= 1 ? "matrix engines, i8 x i8, exact sums"
                                : "matrix engines, i8 x i8, exact sums of 32 columns each";
}

void emulate_matrix_engines(int lanes) {
  lanes_of_emulation = lanes;
}
int emulated_lanes() {
  return lanes_of_emulation;
}

}  // namespace opencl

const Kernels kOpenClMatrixKernels = {opencl::plan_matrix, opencl::kMakeMatrix};
const Kernels kOpenClMatrixWideKernels = {opencl::plan_matrix, opencl::kMakeMatrixWide};

}  // namespace moracle
