// Operations around the experts' GEMMs, element by element.
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_moe {
namespace {

const KernelName kConvert{"ops/moe.cl", "convert_elements"};
const KernelName kScaleRows{"ops/moe.cl", "scale_rows"};
const KernelName kCombine{"ops/moe.cl", "combine"};

}  // namespace
}  // namespace opencl::ops_moe

Status OpenClOps::convert(const Matrix& from, const Matrix& to, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&from, &to}));
  return opencl::launch_elements(queue_, stream, opencl::ops_moe::kConvert, from.rows, to.cols,
                                 from, to, from.rows, from.cols, to.cols);
}

Status OpenClOps::scale_rows(const Matrix& from, const float* weights, const Matrix& to,
                             Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&from, &to}));
  return opencl::launch_elements(queue_, stream, opencl::ops_moe::kScaleRows, from.rows, from.cols,
                                 from, weights, to, from.rows, from.cols);
}

Status OpenClOps::combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                          int64_t top_k, const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&y, &out}));
  return opencl::launch_elements(queue_, stream, opencl::ops_moe::kCombine, out.rows, out.cols, y,
                                 slot_row, topk_weights, top_k, out, out.rows, out.cols);
}

}  // namespace moracle
