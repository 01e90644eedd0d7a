// Backend "opencl-matrix": 4-bit weights on matrix engines of Intel GPUs, from layout rows16.
#include "kernels/opencl/matrix/matrix_linear.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/groups.h"

namespace moracle::opencl {

Result<std::unique_ptr<GroupedLinear>> make_matrix(KernelWeights&& weights, const KernelPlan& plan,
                                                   Device& device) {
  const MatrixShape& shape = weights.shape;
  const MatrixForm form{
      .kernel = std::get<OpenClForm>(plan.kernels.front().form),
      .backend = "opencl-matrix",
      .weight_option = shape.key.dtype == DType::kI4 ? "-D WEIGHT_I4" : "-D WEIGHT_E2M1",
      .scale_row = num_groups(shape),
      .scale_group = 1};
  return make_matrix_linear(std::move(weights), form, device);
}

}  // namespace moracle::opencl
