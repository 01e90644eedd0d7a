// Token embedding and rotary position embedding (RoPE).
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct Embed {
  Matrix table, out;
  const int32_t* ids;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(out, r, c, load(table, ids[r], c));
  }
};

struct Rotate {
  Matrix x;
  RotaryShape shape;
  const float* frequencies;
  const int32_t* positions;
  // Rotates pair c of row r; pairs are numbered across all heads.
  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t head = c / shape.num_pairs, i = c % shape.num_pairs;
    const int64_t begin = head * shape.head_dim + shape.first;
    const int64_t first = begin + (shape.interleaved ? 2 * i : i);
    const int64_t second = first + (shape.interleaved ? 1 : shape.num_pairs);
    const float angle = static_cast<float>(positions[r]) * frequencies[i];
    const float cosine = cosf(angle) * shape.factor, sine = sinf(angle) * shape.factor;
    const float a = load(x, r, first), b = load(x, r, second);
    store(x, r, first, a * cosine - b * sine);
    store(x, r, second, b * cosine + a * sine);
  }
};

struct Temper {
  Matrix x;
  const int32_t* positions;
  int32_t offset;
  float scale, strength;
  __device__ void operator()(int64_t r, int64_t c) const {
    const float steps = floorf(static_cast<float>(positions[r] + offset) / scale);
    store(x, r, c, load(x, r, c) * (log1pf(steps) * strength + 1));
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::embed(const TensorView& table, const int32_t* ids, const Matrix& out,
                      Stream stream) {
  const Matrix from{const_cast<std::byte*>(table.data), table.dtype, table.shape[0], table.shape[1],
                    table.shape[1]};
  MORACLE_CHECK(cuda::check_floats({&from, &out}));
  return cuda::launch_elements(queue_, stream, "embed", out.rows, out.cols,
                               cuda::Embed{from, out, ids});
}

Status CudaOps::rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                       const int32_t* positions, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x}));
  const int64_t pairs = x.cols / shape.head_dim * shape.num_pairs;
  return cuda::launch_elements(queue_, stream, "rotate", x.rows, pairs,
                               cuda::Rotate{x, shape, frequencies, positions});
}

Status CudaOps::temper(const Matrix& x, const int32_t* positions, int32_t offset, float scale,
                       float strength, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x}));
  return cuda::launch_elements(queue_, stream, "temper", x.rows, x.cols,
                               cuda::Temper{x, positions, offset, scale, strength});
}

}  // namespace moracle
