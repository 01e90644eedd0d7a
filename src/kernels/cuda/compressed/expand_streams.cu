// Hyper-connections: mixes a branch's output into the streams. A thread has one column of all
// streams, which it loads before it stores any.
#include "kernels/cuda/compressed/hyper.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

// Up to kMost streams, in registers.
template <int kMost>
struct ExpandElement {
  Matrix streams, branch;
  int64_t num_streams;
  const float* kept;

  __device__ void operator()(int64_t t, int64_t c) const {
    const auto n = static_cast<int>(num_streams);
    const float* const own = kept + t * hyper_floats(n);
    float before[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      before[i] = i < n ? load(streams, t, i * branch.cols + c) : 0.0f;
    const float added = load(branch, t, c);
    constexpr int kTogether = kMost <= 4 ? kMost : 1;  // more would not fit into registers
#pragma unroll kTogether
    for (int k = 0; k < kMost; ++k) {
      if (k >= n) break;
      float sum = own[k] * added;
#pragma unroll
      for (int i = 0; i < kMost; ++i)
        if (i < n) sum += own[(i + 1) * n + k] * before[i];
      store(streams, t, k * branch.cols + c, sum);
    }
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::expand_streams(const Matrix& streams, const Matrix& branch, int64_t num_streams,
                               const float* kept, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&streams, &branch}));
  MORACLE_CHECK(cuda::check_streams(num_streams));
  if (num_streams <= 4) {
    return cuda::launch_elements(queue_, stream, "expand_streams", branch.rows, branch.cols,
                                 cuda::ExpandElement<4>{streams, branch, num_streams, kept});
  }
  return cuda::launch_elements(
      queue_, stream, "expand_streams", branch.rows, branch.cols,
      cuda::ExpandElement<cuda::kMostStreams>{streams, branch, num_streams, kept});
}

}  // namespace moracle
