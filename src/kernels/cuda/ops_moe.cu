// What surrounds the experts' GEMMs.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elements.cuh"

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

// Rows lie in the order of their experts, and are added in that order, in f32.
struct Combine {
  Matrix y, out;
  const int32_t* slot_row;
  const float* weights;
  int64_t top_k;

  // The slot of token t whose row comes next after `row`; -1: none.
  __device__ int64_t next_slot(int64_t t, int32_t row) const {
    int64_t next = -1;
    for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
      if (slot_row[j] > row && (next < 0 || slot_row[j] < slot_row[next])) next = j;
    }
    return next;
  }
  __device__ void operator()(int64_t t, int64_t c) const {
    float sum = 0;
    for (int64_t j = next_slot(t, -1); j >= 0; j = next_slot(t, slot_row[j]))
      sum += (weights != nullptr ? weights[j] : 1.0f) * load(y, slot_row[j], c);
    store(out, t, c, sum);
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

Status CudaOps::combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                        int64_t top_k, const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&y, &out}));
  return cuda::launch_elements(queue_, stream, "combine", out.rows, out.cols,
                               cuda::Combine{y, out, slot_row, topk_weights, top_k});
}

}  // namespace moracle
