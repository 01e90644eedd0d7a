// Ops around the layers of a model, except positions and attention.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/norm_rows.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kModelThreads = 256;

// One block normalizes each run of `size` columns.
__global__ void rms_norm(Matrix x, const float* weight, int64_t size, float epsilon, Matrix out) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t runs = x.cols / size;
  for (int64_t b = blockIdx.x; b < x.rows * runs; b += gridDim.x) {
    const int64_t r = b / runs, first = b % runs * size;
    double squares = 0;
    for (int64_t c = threadIdx.x; c < size; c += kModelThreads) {
      const double value = load(x, r, first + c);
      squares += value * value;
    }
    squares = block_sum(squares);
    const float mean = static_cast<float>(squares / static_cast<double>(size));
    const float scale = 1.0f / sqrtf(mean + epsilon);
    for (int64_t c = threadIdx.x; c < size; c += kModelThreads)
      store(out, r, first + c, load(x, r, first + c) * scale * weight[c]);
  }
}

// RMSNorm of bf16 rows, one block per row. With kAdds, adds y to x first.
template <bool kAdds>
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_rows(Matrix x, Matrix y, const float* weight, float epsilon, Matrix out) {
  pdl_wait();
  pdl_launch_dependents();
  const auto count = static_cast<int>(x.cols / 8);
  for (int64_t r = blockIdx.x; r < x.rows; r += gridDim.x) {
    Eight kept[kMostEights];
    float squares = 0;
#pragma unroll
    for (int n = 0; n < kMostEights; ++n) {
      const int at = threadIdx.x + n * kNormThreads;
      if (at >= count) break;
      kept[n] = eights(x, r)[at];
      if constexpr (kAdds) eights(x, r)[at] = kept[n] = added(kept[n], eights(y, r)[at]);
      add_squares(kept[n], squares);
    }
    const float scale = norm_scale(block_sum(squares), x.cols, epsilon);
#pragma unroll
    for (int n = 0; n < kMostEights; ++n) {
      const int at = threadIdx.x + n * kNormThreads;
      if (at >= count) break;
      eights(out, r)[at] = normalized(kept[n], scale, norm_weights(weight, at));
    }
  }
}

struct Add {
  Matrix x, y;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(x, r, c, load(x, r, c) + load(y, r, c));
  }
};

struct CopyHeads {
  Matrix from, to;
  int64_t from_dim, to_dim, count;
  __device__ void operator()(int64_t r, int64_t i) const {
    const int64_t head = i / count, c = i % count;
    store(to, r, head * to_dim + c, load(from, r, head * from_dim + c));
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                         const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &out}));
  if (weight_size == x.cols && cuda::are_eights({&x, &out}, weight))
    return cuda::launch_early(queue_, stream, "rms_norm", cuda::rms_norm_rows<false>, x.rows,
                              cuda::kNormThreads, 0, x, x, weight, epsilon, out);
  return cuda::launch_early(queue_, stream, "rms_norm", cuda::rms_norm,
                            x.rows * (x.cols / weight_size), cuda::kModelThreads, 0, x, weight,
                            weight_size, epsilon, out);
}

Status CudaOps::add(const Matrix& x, const Matrix& y, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &y}));
  return cuda::launch_elements(queue_, stream, "add", x.rows, x.cols, cuda::Add{x, y});
}

Status CudaOps::add_rms_norm(const Matrix& x, const Matrix& y, const float* weight, float epsilon,
                             const Matrix& out, Stream stream) {
  if (!cuda::are_eights({&x, &y, &out}, weight))
    return Ops::add_rms_norm(x, y, weight, epsilon, out, stream);
  return cuda::launch_early(queue_, stream, "add_rms_norm", cuda::rms_norm_rows<true>, x.rows,
                            cuda::kNormThreads, 0, x, y, weight, epsilon, out);
}

Status CudaOps::copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                           int64_t num_heads, int64_t count, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&from, &to}));
  return cuda::launch_elements(queue_, stream, "copy_heads", from.rows, num_heads * count,
                               cuda::CopyHeads{from, to, from_dim, to_dim, count});
}

}  // namespace moracle
