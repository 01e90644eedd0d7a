// Heads of the tensor-core kernels: sizes, queries, cached keys and values, and sinks.
#pragma once

#include <limits>

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/page_source.cuh"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace moracle::cuda {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kLog2E = 1.44269504f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Lane 4 g + k of a warp: g is its row of an mma fragment, k its pair of columns.
__device__ inline int lane_row() {
  return threadIdx.x % 32 / 4;
}
__device__ inline int lane_pair() {
  return threadIdx.x % 4;
}

__device__ inline int64_t heads_per_kv(const AttentionShape& shape) {
  return shape.num_heads / shape.num_kv_heads;
}
__device__ inline const uint16_t* query_of(const AttendArgs& a, int64_t token, int64_t head) {
  return static_cast<const uint16_t*>(a.q.data) + token * a.q.stride + head * a.shape.head_dim;
}
__device__ inline void store_bf16(const Matrix& out, int64_t token, int64_t column, float value) {
  static_cast<uint16_t*>(out.data)[token * out.stride + column] = float_to_bf16(value);
}

/// The cached keys and values of one KV head of a sequence.
template <int kHead, int kValue, DType kCache>
struct CachedHead {
  // Bytes from one position to the next.
  static constexpr int64_t kKeyBytes = kHead * cache_element(kCache),
                           kValueBytes = kValue * cache_element(kCache);
  const LayerCache& cache;
  std::byte* const* pages;
  int64_t kv;

  __device__ CachedHead(const AttendArgs& a, int32_t sequence, int64_t of_kv)
      : cache(a.shape.cache), pages(a.batch.pages + a.batch.first_page[sequence]), kv(of_kv) {}
  /// The rows of a page from `row` on.
  __device__ KvRows in_page(const std::byte* page, int64_t row) const {
    row += kv * kPagePositions;
    return {page + cache.keys + row * kKeyBytes, page + cache.values + row * kValueBytes};
  }
  __device__ KvRows at(int32_t position) const {
    return in_page(pages[position / kPagePositions], position % kPagePositions);
  }
};

/// Adds a head's sink to a sum of weights. `shrink` rescales the values to the larger reference,
/// and multiplies by the scale of the cached codes.
struct WithSink {
  float shrink, sum;
};
__device__ inline WithSink with_sink(const AttentionShape& shape, int64_t head, float reference,
                                     float sum) {
  if (shape.sinks == nullptr) return {shape.cache.value_scale, sum};
  const float sink = shape.sinks[head] * kLog2E, most = fmaxf(reference, sink);
  const float shrink = exp2f(reference - most);
  return {shrink * shape.cache.value_scale, sum * shrink + exp2f(sink - most)};
}

/// Calls run.template operator()<kHead, kValue, kCache>() with the sizes and the cache dtype of
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

/// Raises the limit of dynamic shared memory of a kernel.
template <class... Params>
Status allow_shared_memory(const Queue& queue, void (*kernel)(Params...), size_t bytes) {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  return check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
}

}  // namespace moracle::cuda
