// Shared parts of the two tensor-core attention kernels.
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/cache_elements.cuh"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace moracle::cuda {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int32_t kPagePositions = 64;  // the only page size of the tensor-core kernels
constexpr float kLog2E = 1.44269504f;
__device__ inline float nothing() {
  return __int_as_float(0xff800000);  // -inf
}

__device__ inline int64_t heads_per_kv(const AttentionShape& shape) {
  return shape.num_heads / shape.num_kv_heads;
}
__device__ inline const uint16_t* query_of(const AttendArgs& a, int64_t token, int64_t head) {
  return static_cast<const uint16_t*>(a.q.data) + token * a.q.stride + head * a.shape.head_dim;
}

/// Addresses of the keys and values of one head, from a position on.
struct Lines {
  const std::byte *keys, *values;
};
template <int kHead, int kValue, DType kCache>
struct Heads {
  static constexpr int kSize = cache_element(kCache);
  const AttentionShape& shape;
  std::byte* const* pages;  // pages of the sequence
  // Bytes from one position to the next.
  static constexpr int64_t kKeyStep = kHead * kSize, kValueStep = kValue * kSize;

  __device__ Heads(const AttendArgs& a, int32_t sequence)
      : shape(a.shape), pages(a.batch.pages + a.batch.first_page[sequence]) {}
  __device__ Lines at(int64_t kv, int32_t position) const {
    const std::byte* const page = pages[position / kPagePositions];
    const int64_t row = kv * kPagePositions + position % kPagePositions;
    return {page + shape.cache.keys + row * kKeyStep, page + shape.cache.values + row * kValueStep};
  }
};

__device__ inline void store_bf16(const Matrix& out, int64_t token, int64_t column, float value) {
  static_cast<uint16_t*>(out.data)[token * out.stride + column] = float_to_bf16(value);
}

/// Adds a head's sink to a sum of weights. `shrink` rescales the weights to the largest score of
/// both, and the values from codes.
struct WithSink {
  float shrink, sum;
};
__device__ inline WithSink with_sink(const AttentionShape& shape, int64_t head, float largest,
                                     float sum) {
  if (shape.sinks == nullptr) return {shape.cache.value_scale, sum};
  const float sink = shape.sinks[head] * kLog2E, most = fmaxf(largest, sink);
  const float shrink = exp2f(largest - most);
  return {shrink * shape.cache.value_scale, sum * shrink + exp2f(sink - most)};
}

/// All support only the sizes that attends_on_tensor_cores accepts.
Status attend_few_tokens(const AttendArgs& args, const Queue& queue, Stream stream);
/// The same on Hopper, in clusters of blocks.
Status attend_few_in_clusters(const AttendArgs& args, const Queue& queue, Stream stream);
Status attend_many_tokens(const AttendArgs& args, const Queue& queue, Stream stream);
/// The same on Hopper.
Status attend_many_on_wgmma(const AttendArgs& args, const Queue& queue, Stream stream);

/// Calls run.template operator()<kHead, kValue, kCache>() with the sizes and the cache's dtype of
/// `shape`.
template <class Run>
Status visit_heads(const AttentionShape& shape, const Run& run) {
  const auto typed = [&]<int kHead, int kValue>() -> Status {
    switch (shape.cache.dtype) {
      case DType::kF32:
        return run.template operator()<kHead, kValue, DType::kF32>();
      case DType::kBF16:
        return run.template operator()<kHead, kValue, DType::kBF16>();
      case DType::kF8E4M3:
        return run.template operator()<kHead, kValue, DType::kF8E4M3>();
      default:
        return run.template operator()<kHead, kValue, DType::kF16>();
    }
  };
  if (shape.head_dim == 64) return typed.template operator()<64, 64>();
  if (shape.head_dim == 128) return typed.template operator()<128, 128>();
  return typed.template operator()<192, 128>();
}

}  // namespace moracle::cuda
