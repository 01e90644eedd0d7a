// Layers with a recurrent state: gates and short convolutions.
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"
#include "kernels/opencl/ops/run_threads.h"

namespace moracle {
namespace opencl::ops_recurrent {
namespace {

const KernelName kGate{"recurrent/recurrent.cl", "gate"};
const KernelName kNormAndGate{"recurrent/recurrent.cl", "norm_and_gate"};
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

Status OpenClOps::norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by,
                                int64_t by_dim, int64_t count, const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &by, &out}));
  const int64_t runs = x.cols / norm.size;
  return opencl::launch(queue_, stream, opencl::ops_recurrent::kNormAndGate, x.rows * runs,
                        opencl::run_threads(norm.size, queue_), x, norm.weight, norm.size,
                        norm.epsilon, norm.function, by, by_dim, count, out, x.rows, runs);
}

Status OpenClOps::convolve(const Matrix& x, const float* weight, const ConvolutionShape& shape,
                           const Batch& batch, const Matrix& out, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &out}));
  return opencl::launch_elements(queue_, stream, opencl::ops_recurrent::kConvolve, out.rows,
                                 out.cols, x, weight, shape.kernel, shape.silu, shape.state,
                                 shape.split, batch.sequences, batch.first_token, batch.states, out,
                                 out.rows, out.cols);
}

}  // namespace moracle
