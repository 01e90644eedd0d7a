// Gated residual streams: what a branch adds to each stream, and gates of embeddings of n-grams.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/compressed/hyper.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

struct InjectElement {
  Matrix streams, branch, weights;
  __device__ void operator()(int64_t t, int64_t c) const {
    const int64_t n = weights.cols, k = c / branch.cols;
    const float weight = 2 * sigmoid(load(weights, t, k) / static_cast<float>(n));
    store(streams, t, c, load(streams, t, c) + weight * load(branch, t, c % branch.cols));
  }
};

constexpr int kGateStreamThreads = 256;

struct GateStreamsArgs {
  Matrix keys, queries, value, out;
};

// A CTA per stream of a token.
__global__ void __launch_bounds__(kGateStreamThreads) gate_streams(const GateStreamsArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t size = a.value.cols, n = a.keys.cols / size;
  for (int64_t b = blockIdx.x; b < a.out.rows * n; b += gridDim.x) {
    const int64_t t = b / n, first = b % n * size;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < size; c += kGateStreamThreads)
      sum += load(a.keys, t, first + c) * load(a.queries, t, first + c);
    const float product = block_sum(sum) / sqrtf(static_cast<float>(size));
    const float root = sqrtf(fmaxf(fabsf(product), 1e-6f));
    const float gate = sigmoid(product > 0 ? root : product < 0 ? -root : product);
    for (int64_t c = threadIdx.x; c < size; c += kGateStreamThreads)
      store(a.out, t, first + c, gate * load(a.value, t, c));
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::inject_streams(const Matrix& streams, const Matrix& branch, const Matrix& weights,
                               Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&streams, &branch, &weights}));
  return cuda::launch_elements(queue_, stream, "inject_streams", streams.rows, streams.cols,
                               cuda::InjectElement{streams, branch, weights});
}

Status CudaOps::gate_streams(const Matrix& keys, const Matrix& queries, const Matrix& value,
                             const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&keys, &queries, &value, &out}));
  return cuda::launch_early(queue_, stream, "gate_streams", cuda::gate_streams,
                            out.rows * (keys.cols / value.cols), cuda::kGateStreamThreads, 0,
                            cuda::GateStreamsArgs{keys, queries, value, out});
}

}  // namespace moracle
