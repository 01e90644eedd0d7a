#include "kernels/opencl/matrix/opencl_matrix_plan.h"

#include <atomic>

#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/groups.h"

namespace moracle {
namespace opencl {
namespace {

std::atomic<int> lanes_of_emulation = 16;

// Integer codes on both sides, which the engines multiply as int8. Other codes become bf16.
bool multiplies_integers(const MatrixShape& shape, const Scheme& scheme) {
  const DType weight = shape.key.dtype;
  return scheme.activation && scheme.activation->dtype == DType::kI8 &&
         (weight == DType::kI8 || weight == DType::kI4);
}

KernelPlan plan_matrix(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  OpenClForm form{OpenClForm::Kernel::kMatrix};
  if (multiplies_integers(request.shape, request.scheme))
    form.sums =
        num_groups(request.shape) <= 1 ? OpenClForm::Sums::kIntegers : OpenClForm::Sums::kGroups;
  plan.kernels = {{form}};
  plan.deterministic = true;
  return plan;
}

}  // namespace

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
