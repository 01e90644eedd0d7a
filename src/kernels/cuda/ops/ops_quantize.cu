// Quantizes activations to the same bits as quant/activation.h. A block handles each group of a
// row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "kernels/cuda/quantize_values.cuh"
#include "quant/activation.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kWarpColumns = 256;  // up to this many columns, a block is one warp

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
  return columns <= kWarpColumns ? 32 : 256;
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
  if (cuda::in_vectors(from, key, to))
    return cuda::quantize_vectors(queue_, from, key, to, cuda::CodeOrder::kNatural, stream);
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
