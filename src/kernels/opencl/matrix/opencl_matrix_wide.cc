// Backend "opencl-matrix-wide": weights of 8 and 16 bits on matrix engines of Intel GPUs, from
// layout columns16.
#include "kernels/opencl/matrix/matrix_linear.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/columns16.h"

namespace moracle::opencl {
namespace opencl_matrix_wide {
namespace {

const char* weight_option(DType type) {
  if (type == DType::kBF16) return "-D WEIGHT_BF16";
  if (type == DType::kF16) return "-D WEIGHT_F16";
  return type == DType::kI8 ? "-D WEIGHT_I8" : "-D WEIGHT_E4M3";
}

}  // namespace
}  // namespace opencl_matrix_wide

Result<std::unique_ptr<GroupedLinear>> make_matrix_wide(KernelWeights&& weights,
                                                        const KernelPlan& plan, Device& device) {
  const MatrixShape& shape = weights.shape;
  const MatrixForm form{.kernel = std::get<OpenClForm>(plan.kernels.front().form),
                        .backend = "opencl-matrix-wide",
                        .weight_option = opencl_matrix_wide::weight_option(shape.key.dtype),
                        .scale_row = 1,
                        .scale_group = columns16::scale_rows(shape),
                        .block_rows = columns16::block_rows(shape)};
  return make_matrix_linear(std::move(weights), form, device);
}

}  // namespace moracle::opencl
