// What surrounds the layers of a model, beside positions and attention.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elements.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// A block for each run of `size` columns.
__global__ void rms_norm(Matrix x, const float* weight, int64_t size, float epsilon, Matrix out) {
  const int64_t runs = x.cols / size;
  for (int64_t b = blockIdx.x; b < x.rows * runs; b += gridDim.x) {
    const int64_t r = b / runs, first = b % runs * size;
    double squares = 0;
    for (int64_t c = threadIdx.x; c < size; c += kThreads) {
      const double value = load(x, r, first + c);
      squares += value * value;
    }
    squares = block_sum(squares);
    const float mean = static_cast<float>(squares / static_cast<double>(size));
    const float scale = 1.0f / sqrtf(mean + epsilon);
    for (int64_t c = threadIdx.x; c < size; c += kThreads)
      store(out, r, first + c, load(x, r, first + c) * scale * weight[c]);
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
  return cuda::launch(queue_, stream, "rms_norm", cuda::rms_norm, x.rows * (x.cols / weight_size),
                      cuda::kThreads, 0, x, weight, weight_size, epsilon, out);
}

Status CudaOps::add(const Matrix& x, const Matrix& y, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &y}));
  return cuda::launch_elements(queue_, stream, "add", x.rows, x.cols, cuda::Add{x, y});
}

Status CudaOps::copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                           int64_t num_heads, int64_t count, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&from, &to}));
  return cuda::launch_elements(queue_, stream, "copy_heads", from.rows, num_heads * count,
                               cuda::CopyHeads{from, to, from_dim, to_dim, count});
}

}  // namespace moracle
