#include "kernels/cuda/ops/quantize_vectors.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/gemm_sm90/scale_rows.h"
#include "kernels/cuda/ops/beside.cuh"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/quantize_values.cuh"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

// Where a token's rows lie.
struct Order {
  OrderedRowsOf of;
  int scale_rows;

  __device__ int row(int64_t token, int slot) const { return of.slot_row[token * of.top_k + slot]; }
  // Index of the scale of a row in a group.
  __device__ int scale(int64_t token, int slot, int row) const {
    int expert = of.topk_ids[token * of.top_k + slot];
    if (of.expert_map != nullptr) expert = of.expert_map[expert];
    const int first = of.expert_offsets[expert];
    return scale_row(first, expert) + row - first;
  }
};

// Rows of bf16 whose columns are whole vectors of eight.
struct VectorArgs {
  const uint16_t* from;
  int64_t from_stride, rows;
  int cols, group, groups;
  int64_t next_row, next_group;  // from a scale to the next row's and the next group's
  QuantKey key;
  uint8_t* to;
  int64_t to_stride;
  int to_cols;
  float* scales;
  bool fragments;               // codes in fragment order
  fragment_order::Bytes bytes;  // order of eight columns
};

constexpr int kVectorThreads = 256, kMostVectorThreads = 1024;

__device__ void clear_vectors(const VectorArgs& a, int64_t row, int first, int step) {
  for (int c = a.cols + first; c < a.to_cols; c += step) a.to[row * a.to_stride + c] = 0;
}

// Warps of each row, and rows of a block.
struct RowShape {
  int warps, block_rows;
};

// Brings the codes of neighbouring vectors to their order. In fragment order two lanes exchange
// half of their codes, so that each stores whole words of 8 bytes, at `column`.
__device__ uint2 arranged(const VectorArgs& a, int& column, uint2 words) {
  if (a.fragments) {
    words = {fragment_order::permute_bytes(words.x, words.y, a.bytes.first),
             fragment_order::permute_bytes(words.x, words.y, a.bytes.second)};
    const bool odd = (column & 8) != 0;
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? words.x : words.y, 1);
    words = odd ? uint2{other, words.y} : uint2{words.x, other};
    const int even = (column & ~15) / 4;  // the first natural word of both
    column = 4 * static_cast<int>(fragment_order::position(1, odd ? even + 1 : even));
  }
  return words;
}
__device__ void store_codes(const VectorArgs& a, int64_t row, int column, uint2 words) {
  *reinterpret_cast<uint2*>(a.to + row * a.to_stride + column) = words;
}

// Stores eight codes of e4m3 as bf16.
__device__ void store_wide(const VectorArgs& a, int64_t row, int column, uint2 words, bool there) {
  if (!there) return;
  auto* const to = reinterpret_cast<uint32_t*>(a.to) + row * a.to_stride / 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int word = column / 2 + i;
    const uint32_t two = (i < 2 ? words.x : words.y) >> (i % 2 * 16);
    to[a.fragments ? fragment_order::position(2, word) : word] = e4m3_to_bf16_pair(two);
  }
}

// Quantizes rows with one scale, or with one for each group of 8 to 256 columns, a power of two:
// then some lanes of a warp have a group. Lanes past the end of a row add zeros to its last group.
// A thread loads kEach vectors at once to hide their latency. One scale: these are all of a
// thread's vectors. kOrdered: a row is stored as each row of experts that reads it.
template <int kEach, bool kGroups, bool kWide = false, bool kOrdered = false>
__global__ void __launch_bounds__(kMostVectorThreads)
    quantize_rows(const VectorArgs a, const RowShape shape, Overlap overlap, const Order order) {
  begin_kernel(overlap);
  __shared__ uint32_t of_warp[2][kMostVectorThreads / 32];
  const int threads = shape.warps * 32, warp = static_cast<int>(threadIdx.x / 32);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int lane = static_cast<int>(threadIdx.x % 32), own = warp / shape.warps,
            vectors = a.cols / 8, lanes = a.group / 8;
  int buffer = 0;
  for (int64_t first = blockIdx.x * int64_t{shape.block_rows}; first < a.rows;
       first += gridDim.x * int64_t{shape.block_rows}, buffer ^= 1) {
    const int64_t r = first + own;
    const bool row_there = r < a.rows;
    const uint16_t* const from = a.from + (row_there ? r : 0) * a.from_stride;
    for (int begin = 0; begin < vectors; begin += kEach * threads) {
      uint4 loaded[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int v = begin + thread + i * threads;
        loaded[i] = {};
        if (v < vectors) loaded[i] = *reinterpret_cast<const uint4*>(from + v * 8);
      }
      uint32_t largest = 0;
      if constexpr (!kGroups) {
#pragma unroll
        for (const uint4& vector : loaded) largest = max(largest, EightValues(vector).largest());
        largest = warp_max(largest);
        if (shape.warps > 1) {  // two buffers: the next row's maxima do not overwrite this one's
          if (lane == 0) of_warp[buffer][warp] = largest;
          __syncthreads();
          for (int w = 0; w < shape.warps; ++w)
            largest = max(largest, of_warp[buffer][own * shape.warps + w]);
        }
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = (begin + thread + i * threads) * 8;
        if (c - lane * 8 >= a.cols) break;  // the whole warp has no vector left
        const EightValues eight(loaded[i]);
        if constexpr (kGroups) {
          largest = eight.largest();
          for (int step = lanes / 2; step > 0; step /= 2)
            largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
        }
        const float scale = scale_of_bits(a.key, largest);
        const bool there = row_there && c < a.cols;
        const uint2 codes = eight.codes(a.key, scale, largest < kInfinityBits);
        if constexpr (kWide) {
          store_wide(a, r, c, codes, there);
        } else {
          int column = c;
          const uint2 words = arranged(a, column, codes);
          if constexpr (kOrdered) {
            for (int slot = 0; slot < order.of.top_k; ++slot) {
              const int row = there ? order.row(r, slot) : -1;
              if (row < 0) continue;
              store_codes(a, row, column, words);
              if (c % a.group == 0)
                a.scales[int64_t{c / a.group} * order.scale_rows + order.scale(r, slot, row)] =
                    scale;
            }
            continue;
          }
          if (there) store_codes(a, r, column, words);
        }
        if (there && c % a.group == 0)
          a.scales[r * a.next_row + c / a.group * a.next_group] = scale;
      }
    }
    if (!kWide && !kOrdered && row_there) clear_vectors(a, r, thread, threads);
  }
  end_kernel(overlap);
}

// A thread copies 16 of the 64 bytes of a block: four words that lie apart in the natural order.
__global__ void __launch_bounds__(kVectorThreads)
    copy_to_fragments(const uint32_t* from, int64_t from_words, uint32_t* to, int64_t to_words,
                      unsigned count, unsigned vectors, Overlap overlap) {
  begin_kernel(overlap);
  for (unsigned i = blockIdx.x * kVectorThreads + threadIdx.x; i < count;
       i += gridDim.x * kVectorThreads) {
    const int64_t r = i / vectors, first = i % vectors * 4;
    const uint32_t* const row = from + r * from_words;
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = row[fragment_order::word_at(2, first + w)];
    *reinterpret_cast<uint4*>(to + r * to_words + first) = {words[0], words[1], words[2], words[3]};
  }
  end_kernel(overlap);
}

// A thread rounds a group of 32 columns, four vectors. Their order within the group is that of
// `to`.
__global__ void __launch_bounds__(kVectorThreads)
    round_groups(const uint16_t* from, int64_t from_stride, uint16_t* to, int64_t to_stride,
                 unsigned count, unsigned groups, const QuantKey key, bool fragments,
                 Overlap overlap) {
  begin_kernel(overlap);
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
      const EightValues& eight = eights[w / 4];
      words[w] = rounded_e4m3(eight[w % 4 * 2], eight[w % 4 * 2 + 1], scale);
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
  end_kernel(overlap);
}

fragment_order::Bytes bytes_of(CodeOrder order) {
  if (order == CodeOrder::kInt4Fragments) return fragment_order::kInt4;
  return order == CodeOrder::kFp4Fragments ? fragment_order::kFp4 : fragment_order::kNatural;
}

int64_t vector_blocks(int64_t vectors) {
  return (vectors + kVectorThreads - 1) / kVectorThreads;
}

}  // namespace

bool in_vectors(const Matrix& from, const QuantKey& key, const Rows& to) {
  const int64_t group = group_cols(key, from.cols), vectors = from.cols / 8;
  const bool rows_fit = group >= from.cols ? vectors <= 2 * kMostVectorThreads
                                           : std::has_single_bit(static_cast<uint64_t>(group)) &&
                                                 group >= 8 && group <= 256;
  return rows_fit && from.rows > 0 && from.dtype == DType::kBF16 && to.values.dtype == key.dtype &&
         from.cols % 8 == 0 && from.stride % 8 == 0 && to.values.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(from.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(to.values.data) % 8 == 0 &&
         from.rows * vectors < int64_t{1} << 31;
}

namespace {

VectorArgs vector_args(const Matrix& from, const QuantKey& key, const Rows& to, CodeOrder order,
                       ScaleOrder scales) {
  const int64_t groups = num_groups(key, from.cols);
  const bool by_row = scales == ScaleOrder::kByRow;
  return VectorArgs{static_cast<const uint16_t*>(from.data),
                    from.stride,
                    from.rows,
                    static_cast<int>(from.cols),
                    static_cast<int>(group_cols(key, from.cols)),
                    static_cast<int>(groups),
                    by_row ? groups : 1,
                    by_row ? 1 : from.rows,
                    key,
                    static_cast<uint8_t*>(to.values.data),
                    to.values.stride,
                    static_cast<int>(to.values.cols),
                    to.scales,
                    order != CodeOrder::kNatural,
                    bytes_of(order)};
}

// Calls `start` with a choice of four kernels (vectors of a thread), the CTAs and their threads.
template <class Start>
Status with_shape(const Matrix& from, Start start) {
  // Many rows occupy all num_sms even if a thread has several vectors.
  constexpr int64_t kMany = 1 << 18;
  const int64_t vectors = from.cols / 8;
  const bool many = from.rows * vectors >= kMany, wide = vectors > kMostVectorThreads;
  const int each = many ? (wide ? 8 : 4) : (wide ? 2 : 1);
  RowShape shape{1, 1};
  while (shape.warps * 32 * each < vectors &&
         shape.warps * 32 < (many ? kVectorThreads : kMostVectorThreads))
    shape.warps *= 2;
  const int threads = std::max(shape.warps * 32, kVectorThreads);
  shape.block_rows = threads / (shape.warps * 32);
  return start(many ? (wide ? 3 : 2) : (wide ? 1 : 0),
               (from.rows + shape.block_rows - 1) / shape.block_rows, threads, shape);
}

}  // namespace

Status quantize_vectors(const Queue& queue, const Matrix& from, const QuantKey& key, const Rows& to,
                        CodeOrder order, Stream stream, Overlap overlap, ScaleOrder scales) {
  const VectorArgs args = vector_args(from, key, to, order, scales);
  const auto start = [&](auto... kernels) {
    return with_shape(from, [&](int choice, int64_t blocks, int threads, const RowShape& shape) {
      const std::array all{kernels...};
      return launch_early(queue, stream, "quantize", all[choice], blocks, threads, 0, args, shape,
                          overlap, Order{});
    });
  };
  if (to.values.dtype == DType::kBF16)
    return start(quantize_rows<1, false, true>, quantize_rows<2, false, true>,
                 quantize_rows<4, false, true>, quantize_rows<8, false, true>);
  return args.groups > 1 ? start(quantize_rows<1, true>, quantize_rows<2, true>,
                                 quantize_rows<4, true>, quantize_rows<8, true>)
                         : start(quantize_rows<1, false>, quantize_rows<2, false>,
                                 quantize_rows<4, false>, quantize_rows<8, false>);
}

Status quantize_ordered(const Queue& queue, const Matrix& from, const QuantKey& key, const Rows& to,
                        const OrderedRowsOf& order, Stream stream) {
  const VectorArgs args = vector_args(from, key, to, CodeOrder::kFragments, ScaleOrder::kByGroup);
  const Order rows{order, static_cast<int>(scale_rows(order.num_rows, order.num_experts))};
  return with_shape(from, [&](int choice, int64_t blocks, int threads, const RowShape& shape) {
    const std::array all{quantize_rows<1, true, false, true>, quantize_rows<2, true, false, true>,
                         quantize_rows<4, true, false, true>, quantize_rows<8, true, false, true>};
    return launch_early(queue, stream, "quantize", all[choice], blocks, threads, 0, args, shape,
                        Overlap::kNone, rows);
  });
}

Status round_to_codes(const Queue& queue, const Matrix& from, const QuantKey& key, const Matrix& to,
                      CodeOrder order, Stream stream, Overlap overlap) {
  const int64_t groups = from.cols / 32;
  return launch_early(
      queue, stream, "round_to_codes", round_groups, vector_blocks(from.rows * groups),
      kVectorThreads, 0, static_cast<const uint16_t*>(from.data), from.stride,
      static_cast<uint16_t*>(to.data), to.stride, static_cast<unsigned>(from.rows * groups),
      static_cast<unsigned>(groups), key, order == CodeOrder::kFragments, overlap);
}

Status to_fragments(const Queue& queue, const Matrix& from, const Matrix& to, Stream stream,
                    Overlap overlap) {
  const int64_t vectors = from.cols / 8;
  return launch_early(
      queue, stream, "to_fragments", copy_to_fragments, vector_blocks(from.rows * vectors),
      kVectorThreads, 0, static_cast<const uint32_t*>(from.data), from.stride / 2,
      static_cast<uint32_t*>(to.data), to.stride / 2, static_cast<unsigned>(from.rows * vectors),
      static_cast<unsigned>(vectors), overlap);
}

}  // namespace moracle::cuda
