// Embedding and rotation. Their ids and positions lie in host memory: they travel with the launch,
// so many at a time.
#include <span>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elements.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int64_t kWithLaunch = 256;
template <class T>
struct Carried {
  T of[kWithLaunch];
};
template <class T>
Carried<T> carry(std::span<const T> all, int64_t first, int64_t count) {
  Carried<T> carried{};
  std::copy_n(all.begin() + first, count, carried.of);
  return carried;
}

struct Embed {
  Matrix table, out;
  Carried<int32_t> ids;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(out, r, c, load(table, ids.of[r], c));
  }
};

struct Rotate {
  Matrix x;
  RotaryShape shape;
  const float* frequencies;
  Carried<int64_t> positions;
  // Pair c of all heads of a row.
  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t head = c / shape.num_pairs, i = c % shape.num_pairs;
    const int64_t begin = head * shape.head_dim + shape.first;
    const int64_t first = begin + (shape.interleaved ? 2 * i : i);
    const int64_t second = first + (shape.interleaved ? 1 : shape.num_pairs);
    const float angle = static_cast<float>(positions.of[r]) * frequencies[i];
    const float cosine = cosf(angle) * shape.factor, sine = sinf(angle) * shape.factor;
    const float a = load(x, r, first), b = load(x, r, second);
    store(x, r, first, a * cosine - b * sine);
    store(x, r, second, b * cosine + a * sine);
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::embed(const TensorView& table, std::span<const int32_t> ids, const Matrix& out,
                      Stream stream) {
  const Matrix from{const_cast<std::byte*>(table.data), table.dtype, table.shape[0], table.shape[1],
                    table.shape[1]};
  MORACLE_CHECK(cuda::check_floats({&from, &out}));
  const auto tokens = static_cast<int64_t>(ids.size());
  for (int64_t first = 0; first < tokens; first += cuda::kWithLaunch) {
    const int64_t count = std::min(cuda::kWithLaunch, tokens - first);
    MORACLE_CHECK(cuda::launch_elements(
        queue_, stream, "embed", count, out.cols,
        cuda::Embed{from, out.slice(first, count), cuda::carry(ids, first, count)}));
  }
  return {};
}

Status CudaOps::rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                       std::span<const int64_t> positions, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x}));
  const int64_t pairs = x.cols / shape.head_dim * shape.num_pairs;
  for (int64_t first = 0; first < x.rows; first += cuda::kWithLaunch) {
    const int64_t count = std::min(cuda::kWithLaunch, x.rows - first);
    MORACLE_CHECK(cuda::launch_elements(queue_, stream, "rotate", count, pairs,
                                        cuda::Rotate{x.slice(first, count), shape, frequencies,
                                                     cuda::carry(positions, first, count)}));
  }
  return {};
}

}  // namespace moracle
