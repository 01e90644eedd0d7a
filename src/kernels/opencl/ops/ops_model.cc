// Operations around the layers of a model, except positions and attention.
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"
#include "kernels/opencl/ops/run_threads.h"

namespace moracle {
namespace opencl::ops_model {
namespace {

const KernelName kEmbed{"ops/model.cl", "embed"};
const KernelName kAdd{"ops/model.cl", "add_elements"};
const KernelName kCopyHeads{"ops/model.cl", "copy_heads"};
const KernelName kRmsNorm{"ops/model.cl", "rms_norm"};
const KernelName kLayerNorm{"ops/model.cl", "layer_norm"};

}  // namespace
}  // namespace opencl::ops_model

Status OpenClOps::embed(const TensorView& table, const int32_t* ids, const Matrix& out,
                        Stream stream) {
  const Matrix from{const_cast<std::byte*>(table.data), table.dtype, table.shape[0], table.shape[1],
                    table.shape[1]};
  MORACLE_CHECK(opencl::check_floats({&from, &out}));
  return opencl::launch_elements(queue_, stream, opencl::ops_model::kEmbed, out.rows, out.cols,
                                 from, ids, out, out.rows, out.cols);
}

Status OpenClOps::rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                           const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &out}));
  const int64_t runs = x.cols / weight_size;
  return opencl::launch(queue_, stream, opencl::ops_model::kRmsNorm, x.rows * runs,
                        opencl::run_threads(weight_size, queue_), x, weight, weight_size, epsilon,
                        out, x.rows, runs);
}

Status OpenClOps::layer_norm(const Matrix& x, const float* weight, const float* bias, float epsilon,
                             const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &out}));
  return opencl::launch(queue_, stream, opencl::ops_model::kLayerNorm, x.rows,
                        opencl::run_threads(x.cols, queue_), x, weight, bias, epsilon, out, x.rows,
                        x.cols);
}

Status OpenClOps::add(const Matrix& x, const Matrix& y, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &y}));
  return opencl::launch_elements(queue_, stream, opencl::ops_model::kAdd, x.rows, x.cols, x, y,
                                 x.rows, x.cols);
}

Status OpenClOps::copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                             int64_t num_heads, int64_t count, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&from, &to}));
  return opencl::launch_elements(queue_, stream, opencl::ops_model::kCopyHeads, from.rows,
                                 num_heads * count, from, from_dim, to, to_dim, count, from.rows,
                                 num_heads * count);
}

}  // namespace moracle
