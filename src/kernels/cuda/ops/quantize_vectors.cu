#include "kernels/cuda/ops/quantize_vectors.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/quantize_values.cuh"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

// Rows of bf16 whose columns are whole vectors of eight.
struct VectorArgs {
  const uint16_t* from;
  int64_t from_stride, rows;
  int cols, group, groups;
  QuantKey key;
  uint8_t* to;
  int64_t to_stride;
  int to_cols;
  float* scales;
  bool fragments;  // codes in fragment order
  bool early;      // the next kernel may start before the wait
};

constexpr int kVectorThreads = 256, kMostVectorThreads = 1024;

__device__ void clear_vectors(const VectorArgs& a, int64_t row, int first, int step) {
  for (int c = a.cols + first; c < a.to_cols; c += step) a.to[row * a.to_stride + c] = 0;
}

// Waits for earlier kernels, and lets later kernels start before or after.
__device__ void wait_in_turn(const VectorArgs& a) {
  if (a.early) start_later_kernels();
  await_earlier_kernels();
  if (!a.early) start_later_kernels();
}

// One scale per row, and a block per row. A thread has at most kEach vectors.
template <int kEach>
__global__ void __launch_bounds__(kMostVectorThreads) quantize_tokens(const VectorArgs a) {
  wait_in_turn(a);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = (thread + i * threads) * 8;
      if (c < a.cols) largest = max(largest, EightValues(a.from + r * a.from_stride + c).largest());
    }
    largest = block_reduce(largest, 0u, [](uint32_t x, uint32_t y) { return max(x, y); });
    const bool finite = largest < kInfinityBits;
    const float scale = scale_of_bits(a.key, largest);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = (thread + i * threads) * 8;
      if (c < a.cols)
        EightValues(a.from + r * a.from_stride + c)
            .put(a.key, scale, finite, a.to + r * a.to_stride, c, a.fragments);
    }
    if (thread == 0) a.scales[r] = scale;
    clear_vectors(a, r, thread, threads);
  }
}

// Groups of 8 to 256 columns, a power of two: some lanes of a warp have one each. A thread loads
// kEach vectors at once to hide their latency.
template <int kEach>
__global__ void __launch_bounds__(kVectorThreads) quantize_groups(const VectorArgs a) {
  wait_in_turn(a);
  constexpr unsigned kChunk = kEach * kVectorThreads;
  const unsigned vectors = static_cast<unsigned>(a.cols) / 8;
  const int lanes = a.group / 8;
  const auto count = static_cast<unsigned>(a.rows) * vectors, all = (count + 31) / 32 * 32;
  for (unsigned first = blockIdx.x * kChunk + threadIdx.x; first < all;
       first += gridDim.x * kChunk) {
    uint4 loaded[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const unsigned i = first + j * kVectorThreads, there = i < count ? i : 0;
      loaded[j] = *reinterpret_cast<const uint4*>(
          a.from + int64_t{there / vectors} * a.from_stride + there % vectors * 8);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const unsigned i = first + j * kVectorThreads;
      const EightValues eight(reinterpret_cast<const uint16_t*>(&loaded[j]));
      uint32_t largest = eight.largest();
      for (int step = lanes / 2; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
      if (i >= count) continue;
      const int64_t r = i / vectors;
      const int c = static_cast<int>(i % vectors) * 8;
      const bool finite = largest < kInfinityBits;
      const float scale = scale_of_bits(a.key, largest);
      eight.put(a.key, scale, finite, a.to + r * a.to_stride, c, a.fragments);
      if (c % a.group == 0) a.scales[r * a.groups + c / a.group] = scale;
      if (c + 8 == a.cols) clear_vectors(a, r, 0, 1);
    }
  }
}

// A thread copies 16 of the 64 bytes of a block: four words that lie apart in the natural order.
__global__ void __launch_bounds__(kVectorThreads)
    copy_to_fragments(const uint32_t* from, int64_t from_words, uint32_t* to, int64_t to_words,
                      unsigned count, unsigned pieces) {
  await_earlier_kernels();
  start_later_kernels();
  for (unsigned i = blockIdx.x * kVectorThreads + threadIdx.x; i < count;
       i += gridDim.x * kVectorThreads) {
    const int64_t r = i / pieces, first = i % pieces * 4;
    const uint32_t* const row = from + r * from_words;
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = row[fragment_order::word_at(2, first + w)];
    *reinterpret_cast<uint4*>(to + r * to_words + first) = {words[0], words[1], words[2], words[3]};
  }
}

// A thread rounds a group of 32 columns, four vectors. Their order within the group is that of
// `to`.
__global__ void __launch_bounds__(kVectorThreads)
    round_groups(const uint16_t* from, int64_t from_stride, uint16_t* to, int64_t to_stride,
                 unsigned count, unsigned groups, const QuantKey key, bool fragments) {
  await_earlier_kernels();
  start_later_kernels();
  for (unsigned i = blockIdx.x * kVectorThreads + threadIdx.x; i < count;
       i += gridDim.x * kVectorThreads) {
    const int64_t r = i / groups, column = i % groups * 32;
    const uint16_t* const group = from + r * from_stride + column;
    const EightValues eights[4] = {EightValues(group), EightValues(group + 8),
                                   EightValues(group + 16), EightValues(group + 24)};
    uint32_t largest = 0;
#pragma unroll
    for (const EightValues& eight : eights) largest = max(largest, eight.largest());
    const float scale = scale_of_bits(key, largest);
    uint32_t words[16];
#pragma unroll
    for (int w = 0; w < 16; ++w) {
      const float* const two = &eights[w / 4].values[w % 4 * 2];
      words[w] = rounded_e4m3(two[0], two[1], scale);
    }
    auto* const out = reinterpret_cast<uint4*>(to + r * to_stride + column);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const auto word = [&](int at) {
        return fragments ? words[fragment_order::word_at(2, at)] : words[at];
      };
      out[v] = {word(4 * v), word(4 * v + 1), word(4 * v + 2), word(4 * v + 3)};
    }
  }
}

int64_t vector_blocks(int64_t vectors) {
  return (vectors + kVectorThreads - 1) / kVectorThreads;
}

}  // namespace

bool in_vectors(const Matrix& from, const QuantKey& key, const Rows& to) {
  const int64_t group = group_cols(key, from.cols), vectors = from.cols / 8;
  const bool rows_fit = group >= from.cols
                            ? vectors <= 2 * kMostVectorThreads
                            : std::has_single_bit(static_cast<uint64_t>(group)) && group >= 8 &&
                                  group <= 256 && from.cols % group == 0;
  return rows_fit && from.rows > 0 && from.dtype == DType::kBF16 && to.values.dtype == key.dtype &&
         from.cols % 8 == 0 && from.stride % 8 == 0 && to.values.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(from.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(to.values.data) % 8 == 0 &&
         from.rows * vectors < int64_t{1} << 31;
}

Status quantize_vectors(const Queue& queue, const Matrix& from, const QuantKey& key, const Rows& to,
                        CodeOrder order, Stream stream, bool early) {
  const VectorArgs args{static_cast<const uint16_t*>(from.data),
                        from.stride,
                        from.rows,
                        static_cast<int>(from.cols),
                        static_cast<int>(group_cols(key, from.cols)),
                        static_cast<int>(num_groups(key, from.cols)),
                        key,
                        static_cast<uint8_t*>(to.values.data),
                        to.values.stride,
                        static_cast<int>(to.values.cols),
                        to.scales,
                        order == CodeOrder::kFragments,
                        early};
  const int64_t vectors = from.cols / 8;
  if (args.groups > 1) {
    constexpr int kEach = 4;
    constexpr int64_t kMany = 1 << 20;  // enough for kEach to leave no multiprocessor idle
    const int64_t all = from.rows * vectors;
    return all < kMany
               ? launch_early(queue, stream, "quantize", quantize_groups<1>, vector_blocks(all),
                              kVectorThreads, 0, args)
               : launch_early(queue, stream, "quantize", quantize_groups<kEach>,
                              vector_blocks((all + kEach - 1) / kEach), kVectorThreads, 0, args);
  }
  const auto threads =
      static_cast<int>(std::min<int64_t>((vectors + 31) / 32 * 32, kMostVectorThreads));
  return launch_early(queue, stream, "quantize",
                      vectors <= kMostVectorThreads ? quantize_tokens<1> : quantize_tokens<2>,
                      from.rows, threads, 0, args);
}

Status round_to_codes(const Queue& queue, const Matrix& from, const QuantKey& key, const Matrix& to,
                      CodeOrder order, Stream stream) {
  const int64_t groups = from.cols / 32;
  return launch_early(
      queue, stream, "round_to_codes", round_groups, vector_blocks(from.rows * groups),
      kVectorThreads, 0, static_cast<const uint16_t*>(from.data), from.stride,
      static_cast<uint16_t*>(to.data), to.stride, static_cast<unsigned>(from.rows * groups),
      static_cast<unsigned>(groups), key, order == CodeOrder::kFragments);
}

Status to_fragments(const Queue& queue, const Matrix& from, const Matrix& to, Stream stream) {
  const int64_t pieces = from.cols / 8;
  return launch_early(queue, stream, "to_fragments", copy_to_fragments,
                      vector_blocks(from.rows * pieces), kVectorThreads, 0,
                      static_cast<const uint32_t*>(from.data), from.stride / 2,
                      static_cast<uint32_t*>(to.data), to.stride / 2,
                      static_cast<unsigned>(from.rows * pieces), static_cast<unsigned>(pieces));
}

}  // namespace moracle::cuda
