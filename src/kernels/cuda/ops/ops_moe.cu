// Ops around the experts' GEMMs.
#include "kernels/cuda/elements.cuh"
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

// Adds the rows of a token in f32, in the order of their experts, which is also the order of rows.
// Supports any top_k. combine_ordered below finds the order once per block.
struct Combine {
  Matrix y, out;
  const int32_t* slot_row;
  const float* weights;
  int64_t top_k;

  // Returns the slot of token t whose row comes next after `row`, or -1.
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

constexpr int kMostSlots = 32;        // slots that one warp orders
constexpr int kColumnsAtOnce = 1024;  // columns of a token that a block processes

__global__ void __launch_bounds__(kElementThreads) combine_ordered(Combine c) {
  __shared__ int32_t rows[kMostSlots];
  __shared__ float weights[kMostSlots];
  __shared__ int count;
  const int64_t tiles = (c.out.cols + kColumnsAtOnce - 1) / kColumnsAtOnce;
  const auto top_k = static_cast<int>(c.top_k);
  for (int64_t b = blockIdx.x; b < c.out.rows * tiles; b += gridDim.x) {
    const int64_t t = b / tiles;
    __syncthreads();  // wait until the previous order has been used
    if (threadIdx.x < 32) {
      const int j = threadIdx.x;
      const int32_t own = j < top_k ? c.slot_row[t * top_k + j] : -1;
      int before = 0, all = 0;
      for (int other = 0; other < top_k; ++other) {
        const int32_t row = __shfl_sync(0xffffffffu, own, other);
        before += row >= 0 && row < own;
        all += row >= 0;
      }
      if (own >= 0) {
        rows[before] = own;
        weights[before] = c.weights != nullptr ? c.weights[t * top_k + j] : 1.0f;
      }
      if (j == 0) count = all;
    }
    __syncthreads();
    const int64_t first = b % tiles * kColumnsAtOnce,
                  last = min(c.out.cols, first + kColumnsAtOnce);
    for (int64_t at = first + threadIdx.x; at < last; at += kElementThreads) {
      float sum = 0;
      for (int i = 0; i < count; ++i) sum += weights[i] * load(c.y, rows[i], at);
      store(c.out, t, at, sum);
    }
  }
}

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
  const cuda::Combine combine{y, out, slot_row, topk_weights, top_k};
  if (top_k > cuda::kMostSlots)
    return cuda::launch_elements(queue_, stream, "combine", out.rows, out.cols, combine);
  const int64_t tiles = (out.cols + cuda::kColumnsAtOnce - 1) / cuda::kColumnsAtOnce;
  return cuda::launch(queue_, stream, "combine", cuda::combine_ordered, out.rows * tiles,
                      cuda::kElementThreads, 0, combine);
}

}  // namespace moracle
