// LayerNorm of rows.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kLayerNormThreads = 256;

// One block normalizes a row. x and out may be the same: a thread stores only columns that it
// alone reads afterwards.
__global__ void layer_norm(Matrix x, const float* weight, const float* bias, float epsilon,
                           Matrix out) {
  pdl_wait();
  pdl_launch_dependents();
  const auto cols = static_cast<float>(x.cols);
  for (int64_t r = blockIdx.x; r < x.rows; r += gridDim.x) {
    float sum = 0, squares = 0;
    for (int64_t c = threadIdx.x; c < x.cols; c += kLayerNormThreads) sum += load(x, r, c);
    const float mean = block_sum(sum) / cols;
    for (int64_t c = threadIdx.x; c < x.cols; c += kLayerNormThreads) {
      const float value = load(x, r, c) - mean;
      squares += value * value;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / cols + epsilon);
    for (int64_t c = threadIdx.x; c < x.cols; c += kLayerNormThreads)
      store(out, r, c, (load(x, r, c) - mean) * scale * weight[c] + bias[c]);
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::layer_norm(const Matrix& x, const float* weight, const float* bias, float epsilon,
                           const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &out}));
  return cuda::launch_early(queue_, stream, "layer_norm", cuda::layer_norm, x.rows,
                            cuda::kLayerNormThreads, 0, x, weight, bias, epsilon, out);
}

}  // namespace moracle
