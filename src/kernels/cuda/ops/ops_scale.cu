// Scales of experts and capped logits.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct ScaleByExpert {
  const int32_t* ids;
  const float* scales;
  float* weights;
  __device__ void operator()(int64_t, int64_t i) const {
    if (ids[i] >= 0) weights[i] *= scales[ids[i]];
  }
};

struct Cap {
  Matrix x;
  float cap;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(x, r, c, cap * tanhf(load(x, r, c) / cap));
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::scale_by_expert(const int32_t* ids, int64_t count, const float* scales,
                                float* weights, Stream stream) {
  return cuda::launch_elements(queue_, stream, "scale_by_expert", 1, count,
                               cuda::ScaleByExpert{ids, scales, weights});
}

Status CudaOps::cap(const Matrix& x, float cap, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x}));
  return cuda::launch_elements(queue_, stream, "cap", x.rows, x.cols, cuda::Cap{x, cap});
}

}  // namespace moracle
