// Quantizes activations to the same bits as quant/activation.h. A block handles each group of a
// row.
#include <algorithm>
#include <bit>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/quantize_values.cuh"
#include "quant/activation.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kFewColumns = 256;  // up to this many columns, a block is one warp

Error unsupported(const QuantKey& key) {
  return {ErrorKind::kUnsupported, "", "activations", "int8 or fp8 per token, fp8 per group, mxfp8",
          str("the scheme has another kind of ", name(key.dtype))};
}

__device__ float value_of(const QuantKey& key, uint8_t code) {
  return key.dtype == DType::kI8 ? static_cast<float>(static_cast<int8_t>(code))
                                 : e4m3_to_float(code);
}

// Stores the code, or its dequantized value if `to` holds floats.
__device__ void put(const QuantKey& key, const Matrix& to, int64_t r, int64_t c, uint8_t code,
                    float scale) {
  if (to.dtype == DType::kI8 || to.dtype == DType::kF8E4M3)
    static_cast<uint8_t*>(to.data)[r * to.stride + c] = code;
  else
    store(to, r, c, value_of(key, code) * scale);
}

__device__ void clear_padding(const QuantKey& key, const Matrix& to, int64_t r, int64_t first) {
  for (int64_t c = first + threadIdx.x; c < to.cols; c += blockDim.x) put(key, to, r, c, 0, 0);
}

__global__ void quantize(Matrix from, QuantKey key, int64_t group, int64_t groups, Rows to) {
  for (int64_t b = blockIdx.x; b < from.rows * groups; b += gridDim.x) {
    const int64_t r = b / groups, g = b % groups;
    const int64_t begin = g * group, end = min(begin + group, from.cols);
    // Compare magnitudes by their bits, which have the same order. Infinity and NaN are the
    // largest.
    uint32_t largest = 0;
    for (int64_t c = begin + threadIdx.x; c < end; c += blockDim.x)
      largest = max(largest, __float_as_uint(load(from, r, c)) & 0x7fffffffu);
    largest = block_reduce(largest, 0u, [](uint32_t a, uint32_t other) { return max(a, other); });
    const bool finite = largest < kInfinityBits;
    const float scale = scale_of_bits(key, largest);
    for (int64_t c = begin + threadIdx.x; c < end; c += blockDim.x) {
      const uint8_t code = finite ? code_of(key, load(from, r, c), scale) : uint8_t{0};
      put(key, to.values, r, c, code, scale);
    }
    if (threadIdx.x == 0) to.scales[r * to.num_scales + g] = scale;
    if (g == groups - 1) clear_padding(key, to.values, r, from.cols);
  }
}

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
};

constexpr int kVectorThreads = 256, kMostVectorThreads = 1024;

__device__ void clear_vectors(const VectorArgs& a, int64_t row, int first, int step) {
  for (int c = a.cols + first; c < a.to_cols; c += step) a.to[row * a.to_stride + c] = 0;
}

// One scale per row, and a block per row. A thread has at most kEach vectors.
template <int kEach>
__global__ void __launch_bounds__(kMostVectorThreads) quantize_tokens(const VectorArgs a) {
  await_earlier_kernels();
  start_later_kernels();
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
            .put(a.key, scale, finite, a.to + r * a.to_stride + c);
    }
    if (thread == 0) a.scales[r] = scale;
    clear_vectors(a, r, thread, threads);
  }
}

// Groups of 8 to 256 columns, a power of two: some lanes of a warp have one each.
__global__ void __launch_bounds__(kVectorThreads) quantize_groups(const VectorArgs a) {
  await_earlier_kernels();
  start_later_kernels();
  const int lanes = a.group / 8, vectors = a.cols / 8;
  const int64_t all = (a.rows * vectors + 31) / 32 * 32;
  for (int64_t i = blockIdx.x * int64_t{kVectorThreads} + threadIdx.x; i < all;
       i += gridDim.x * int64_t{kVectorThreads}) {
    const bool there = i < a.rows * vectors;
    const int64_t r = there ? i / vectors : 0;
    const int c = there ? static_cast<int>(i % vectors) * 8 : 0;
    const EightValues eight(a.from + r * a.from_stride + c);
    uint32_t largest = eight.largest();
    for (int step = lanes / 2; step > 0; step /= 2)
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
    if (!there) continue;
    const bool finite = largest < kInfinityBits;
    const float scale = scale_of_bits(a.key, largest);
    eight.put(a.key, scale, finite, a.to + r * a.to_stride + c);
    if (c % a.group == 0) a.scales[r * a.groups + c / a.group] = scale;
    if (c + 8 == a.cols) clear_vectors(a, r, 0, 1);
  }
}

struct StaticArgs {
  Matrix from;
  const int32_t* row_index;
  const int32_t* offsets;
  int64_t num_experts;
  const float* scales;
  QuantKey key;
  Rows to;
};

__global__ void quantize_static(StaticArgs a) {
  for (int64_t r = blockIdx.x; r < a.to.values.rows; r += gridDim.x) {
    const int64_t e = a.offsets != nullptr ? expert_of(a.offsets, a.num_experts, r) : 0;
    if (e >= a.num_experts) return;  // rows are in order: later rows have no expert either
    const float scale = a.scales[e];
    const int64_t source = a.row_index != nullptr ? a.row_index[r] : r;
    for (int64_t c = threadIdx.x; c < a.from.cols; c += blockDim.x)
      put(a.key, a.to.values, r, c, code_of(a.key, load(a.from, source, c), scale), scale);
    if (threadIdx.x == 0) a.to.scales[r] = scale;
    clear_padding(a.key, a.to.values, r, a.from.cols);
  }
}

int threads_for(int64_t columns) {
  return columns <= kFewColumns ? 32 : 256;
}

Status check_types(const Matrix& from, const QuantKey& key, const Matrix& to) {
  if (to.dtype == key.dtype) return check_floats({&from});
  return check_floats({&from, &to});
}

}  // namespace
}  // namespace cuda

Status CudaOps::quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream stream) {
  if (!can_quantize(key)) return cuda::unsupported(key);
  MORACLE_CHECK(cuda::check_types(from, key, to.values));
  const int64_t group = group_cols(key, from.cols), groups = num_groups(key, from.cols);
  const bool in_vectors = from.dtype == DType::kBF16 && to.values.dtype == key.dtype &&
                          from.cols % 8 == 0 && from.stride % 8 == 0 && to.values.stride % 8 == 0 &&
                          reinterpret_cast<uintptr_t>(from.data) % 16 == 0 &&
                          reinterpret_cast<uintptr_t>(to.values.data) % 8 == 0;
  if (in_vectors && from.rows > 0) {
    const cuda::VectorArgs args{static_cast<const uint16_t*>(from.data),
                                from.stride,
                                from.rows,
                                static_cast<int>(from.cols),
                                static_cast<int>(group),
                                static_cast<int>(groups),
                                key,
                                static_cast<uint8_t*>(to.values.data),
                                to.values.stride,
                                static_cast<int>(to.values.cols),
                                to.scales};
    const int64_t vectors = from.cols / 8;
    if (groups == 1 && vectors <= 2 * cuda::kMostVectorThreads) {
      const auto threads =
          static_cast<int>(std::min<int64_t>((vectors + 31) / 32 * 32, cuda::kMostVectorThreads));
      return cuda::launch_early(
          queue_, stream, "quantize",
          vectors <= cuda::kMostVectorThreads ? cuda::quantize_tokens<1> : cuda::quantize_tokens<2>,
          from.rows, threads, 0, args);
    }
    if (std::has_single_bit(static_cast<uint64_t>(group)) && group >= 8 && group <= 256 &&
        from.cols % group == 0) {
      const int64_t all = from.rows * vectors;
      return cuda::launch_early(queue_, stream, "quantize", cuda::quantize_groups,
                                (all + cuda::kVectorThreads - 1) / cuda::kVectorThreads,
                                cuda::kVectorThreads, 0, args);
    }
  }
  return cuda::launch(queue_, stream, "quantize", cuda::quantize, from.rows * groups,
                      cuda::threads_for(group), 0, from, key, group, groups, to);
}

Status CudaOps::quantize_static(const Matrix& from, const int32_t* row_index,
                                const int32_t* expert_offsets, int64_t num_experts,
                                const float* scales, const QuantKey& key, const Rows& to,
                                Stream stream) {
  if (key != kFp8StaticTensorSym) return cuda::unsupported(key);
  MORACLE_CHECK(cuda::check_types(from, key, to.values));
  const cuda::StaticArgs args{from, row_index, expert_offsets, num_experts, scales, key, to};
  return cuda::launch(queue_, stream, "quantize_static", cuda::quantize_static, to.values.rows,
                      cuda::threads_for(from.cols), 0, args);
}

}  // namespace moracle
