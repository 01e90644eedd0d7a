// Layers with a recurrent state: gates and short convolutions.
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"
#include "kernels/opencl/ops/run_threads.h"

namespace moracle {
namespace opencl::ops_recurrent {
namespace {

const KernelName kGate{"recurrent/recurrent.cl", "gate"};
const KernelName kGateHeads{"recurrent/recurrent.cl", "gate_heads"};
const KernelName kNormAndGate{"recurrent/recurrent.cl", "norm_and_gate"};
const KernelName kGateAndNorm{"recurrent/recurrent.cl", "gate_and_norm"};
const KernelName kConvolve{
    .file = "recurrent/recurrent.cl", .kernel = "convolve", .follows_pointers = true};

}  // namespace
}  // namespace opencl::ops_recurrent

Status OpenClOps::gate(const Matrix& x, int64_t x_dim, const Matrix& by, int64_t by_dim,
                       int64_t num_heads, int64_t count, Gate function, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &by}));
  return opencl::launch_elements(queue_, stream, opencl::ops_recurrent::kGate, x.rows,
                                 num_heads * count, x, x_dim, by, by_dim, count, function, x.rows,
                                 num_heads * count);
}

Status OpenClOps::gate_heads(const Matrix& x, const Matrix& by, int64_t head_dim, Gate function,
                             Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &by}));
  return opencl::launch_elements(queue_, stream, opencl::ops_recurrent::kGateHeads, x.rows, x.cols,
                                 x, by, head_dim, function, x.rows, x.cols);
}

Status OpenClOps::norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by,
                                int64_t by_dim, int64_t count, const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &by, &out}));
  const int64_t runs = x.cols / norm.size;
  return opencl::launch(queue_, stream, opencl::ops_recurrent::kNormAndGate, x.rows * runs,
                        opencl::run_threads(norm.size, queue_), x, norm.weight, norm.size,
                        norm.epsilon, norm.function, by, by_dim, count, out, x.rows, runs);
}

Status OpenClOps::gate_and_norm(const Matrix& x, const Matrix& by, const float* weight,
                                int64_t size, float epsilon, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &by}));
  const int64_t runs = x.cols / size;
  return opencl::launch(queue_, stream, opencl::ops_recurrent::kGateAndNorm, x.rows * runs,
                        opencl::run_threads(size, queue_), x, by, weight, size, epsilon, x.rows,
                        runs);
}

Status OpenClOps::convolve(const Matrix& x, const float* weight, const ConvolutionShape& shape,
                           const Batch& batch, const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &out}));
  const bool has_bias = shape.bias != nullptr;
  return opencl::launch_elements(
      queue_, stream, opencl::ops_recurrent::kConvolve, out.rows, out.cols, x, weight,
      has_bias ? shape.bias : weight, has_bias, shape.kernel, shape.silu, shape.state, shape.split,
      batch.sequences, batch.first_token, batch.states, out, out.rows, out.cols);
}

}  // namespace moracle
