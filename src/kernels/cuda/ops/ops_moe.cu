// Ops around the experts' GEMMs.
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct Convert {
  Matrix from, to;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(to, r, c, c < from.cols ? load(from, r, c) : 0.0f);
  }
};

struct ScaleRows {
  Matrix from, to;
  const float* weights;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(to, r, c, load(from, r, c) * weights[r]);
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::convert(const Matrix& from, const Matrix& to, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&from, &to}));
  return cuda::launch_elements(queue_, stream, "convert", from.rows, to.cols,
                               cuda::Convert{from, to});
}

Status CudaOps::scale_rows(const Matrix& from, const float* weights, const Matrix& to,
                           Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&from, &to}));
  return cuda::launch_elements(queue_, stream, "scale_rows", from.rows, from.cols,
                               cuda::ScaleRows{from, to, weights});
}

}  // namespace moracle
