// Hyper-connections: the weights of each token, and the weighted sum of its streams. A CTA takes
// one token, or several that share the loads of the projection. A warp takes a row of the
// projection. Each token's sums have one order, whatever the number of tokens.
#include "base/text.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/compressed/hyper.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/norm_rows.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kCollapseThreads = 1024, kCollapseWarps = kCollapseThreads / 32;
constexpr int kTokensOfMany = 4;  // of a CTA

struct CollapseArgs {
  Matrix streams, out;
  HyperWeights weights;
  HyperShape shape;
  float* kept;

  __host__ __device__ int64_t rows() const {
    const int64_t n = shape.num_streams;
    return kept == nullptr ? n : n + hyper_floats(n);
  }
};

// A dot product of each token with one row of the projection; null: with itself. Lane by lane; the
// fused products are written out, because compilers fuse differently in each kernel.
template <int kTokens, bool kVectors>
__device__ void dot_rows(const Matrix& streams, const int64_t (&tokens)[kTokens], const float* row,
                         float (&sums)[kTokens]) {
  const int64_t lane = threadIdx.x % 32;
  if constexpr (kVectors) {
#pragma unroll 2
    for (int64_t v = lane; v < streams.cols / 8; v += 32) {
      Eight x[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) x[t] = eights(streams, tokens[t])[v];
      float weights[8] = {};
      if (row != nullptr) {
        const EightWeights w = norm_weights(row, static_cast<int>(v));
        weights[0] = w.low.x, weights[1] = w.low.y, weights[2] = w.low.z, weights[3] = w.low.w;
        weights[4] = w.high.x, weights[5] = w.high.y, weights[6] = w.high.z, weights[7] = w.high.w;
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float own = x[t][i];
          sums[t] = __fmaf_rn(own, row != nullptr ? weights[i] : own, sums[t]);
        }
      }
    }
  } else {
    for (int64_t c = lane; c < streams.cols; c += 32) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float own = load(streams, tokens[t], c);
        sums[t] = __fmaf_rn(own, row != nullptr ? row[c] : own, sums[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    for (int step = 16; step > 0; step /= 2) sums[t] += __shfl_xor_sync(kAllLanes, sums[t], step);
  }
}

template <int kTokens, bool kVectors>
__global__ void __launch_bounds__(kCollapseThreads) collapse_streams(const CollapseArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ float projected[kTokens][kMostStreams * (kMostStreams + 2)], squares[kTokens];
  const int64_t n = a.shape.num_streams, rows = a.rows();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t first = int64_t{blockIdx.x} * kTokens; first < a.streams.rows;
       first += int64_t{gridDim.x} * kTokens) {
    const auto count = static_cast<int>(min(int64_t{kTokens}, a.streams.rows - first));
    int64_t tokens[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) tokens[t] = first + min(t, count - 1);
    __syncthreads();  // wait until the previous weights have been used
    for (int64_t row = warp; row <= rows; row += kCollapseWarps) {
      float sums[kTokens] = {};
      dot_rows<kTokens, kVectors>(
          a.streams, tokens, row < rows ? a.weights.projection + row * a.streams.cols : nullptr,
          sums);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (lane == 0) (row < rows ? projected[t][row] : squares[t]) = sums[t];
      }
    }
    __syncthreads();
    if (warp < count) {
      const float scale = norm_scale(squares[warp], a.streams.cols, a.shape.norm_epsilon);
      weigh_streams(projected[warp], scale, a.weights, a.shape, a.kept != nullptr);
      // Without `kept` there are n rows.
      for (int64_t i = n + lane; i < rows; i += 32)
        a.kept[(first + warp) * hyper_floats(n) + i - n] = projected[warp][i];
    }
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      for (int64_t c = threadIdx.x; c < a.out.cols; c += kCollapseThreads) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i)
          sum = __fmaf_rn(projected[t][i], load(a.streams, first + t, i * a.out.cols + c), sum);
        store(a.out, first + t, c, sum);
      }
    }
  }
}

struct AverageElement {
  Matrix streams, out;
  int64_t n;
  __device__ void operator()(int64_t t, int64_t c) const {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += load(streams, t, i * out.cols + c);
    store(out, t, c, sum / static_cast<float>(n));
  }
};

template <int kTokens>
Status launch_collapse(const CollapseArgs& a, const Queue& queue, Stream stream) {
  const Matrix& x = a.streams;
  const bool vectors = x.dtype == DType::kBF16 && x.cols % 8 == 0 && x.stride % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(a.weights.projection) % 16 == 0;
  return launch_early(queue, stream, "collapse_streams",
                      vectors ? collapse_streams<kTokens, true> : collapse_streams<kTokens, false>,
                      (a.streams.rows + kTokens - 1) / kTokens, kCollapseThreads, 0, a);
}

}  // namespace
}  // namespace cuda

Status CudaOps::collapse_streams(const Matrix& streams, const HyperWeights& weights,
                                 const HyperShape& shape, const Matrix& out, float* kept,
                                 Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&streams, &out}));
  if (weights.projection == nullptr) {
    return cuda::launch_elements(queue_, stream, "average_streams", out.rows, out.cols,
                                 cuda::AverageElement{streams, out, shape.num_streams});
  }
  MORACLE_CHECK(cuda::check_streams(shape.num_streams));
  const cuda::CollapseArgs args{streams, out, weights, shape, kept};
  // Single tokens for as long as there are SMs for them.
  if (streams.rows <= queue_.num_sms) return cuda::launch_collapse<1>(args, queue_, stream);
  return cuda::launch_collapse<cuda::kTokensOfMany>(args, queue_, stream);
}

}  // namespace moracle
