#include "kernels/cuda/gemm_sm90/exponents.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/quantize_values.cuh"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kNan = 255;  // the exponent

struct ExponentArgs {
  uint8_t* base;
  int64_t expert_bytes, scales_at;
  int panels, blocks, groups, group_blocks;  // of an expert, a row, a row, a group

  __device__ uint8_t* codes(int64_t panel) const {
    return base + panel / panels * expert_bytes + panel % panels * blocks * mma16::block_bytes(8);
  }
  /// [group][row of the panel]
  __device__ uint8_t* exponents(int64_t panel) const {
    return base + panel / panels * expert_bytes + scales_at +
           panel % panels * groups * mma16::kRows;
  }
};

// 16 bytes of a block are codes of one row.
__device__ int row_of_vector(int vector) {
  return 2 * (vector % 8) + vector / 16;
}
constexpr int kVectors = mma16::block_bytes(8) / 16;

// Multiplies four codes by a power of two.
__device__ uint32_t scaled_codes(uint32_t four, float factor) {
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    values[i] = e4m3_to_float(static_cast<uint8_t>(four >> (8 * i))) * factor;
  return to_e4m3_pair(values[0], values[1]) | to_e4m3_pair(values[2], values[3]) << 16;
}

// A CTA changes the codes of a panel at a time. The exponents stay for take_row_scales.
__global__ void __launch_bounds__(kThreads) scale_codes(const ExponentArgs a, int64_t count) {
  __shared__ unsigned largest[mma16::kRows];
  for (int64_t panel = blockIdx.x; panel < count; panel += gridDim.x) {
    const uint8_t* const exponents = a.exponents(panel);
    auto* const codes = reinterpret_cast<uint4*>(a.codes(panel));
    if (threadIdx.x < mma16::kRows) largest[threadIdx.x] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.groups * mma16::kRows; i += kThreads)
      atomicMax(&largest[i % mma16::kRows], exponents[i]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.blocks * kVectors; i += kThreads) {
      const int row = row_of_vector(i % kVectors), group = i / kVectors / a.group_blocks;
      const int down = static_cast<int>(largest[row]) - exponents[group * mma16::kRows + row];
      if (down == 0) continue;
      const float factor = ldexpf(1.0f, -down);
      const uint4 four = codes[i];
      codes[i] = {scaled_codes(four.x, factor), scaled_codes(four.y, factor),
                  scaled_codes(four.z, factor), scaled_codes(four.w, factor)};
    }
    __syncthreads();
  }
}

// A CTA replaces the exponents of an expert by one f32 scale for each row. Scales of some rows lie
// before the exponents of later rows, because a row has at least four of them.
__global__ void __launch_bounds__(kThreads) take_row_scales(const ExponentArgs a, int experts) {
  const int rows = a.panels * mma16::kRows;
  for (int64_t e = blockIdx.x; e < experts; e += gridDim.x) {
    auto* const scales = reinterpret_cast<float*>(a.exponents(e * a.panels));
    for (int first = 0; first < rows; first += kThreads) {
      const int row = first + static_cast<int>(threadIdx.x);
      uint32_t largest = 0;
      if (row < rows) {
        const uint8_t* const of_panel = a.exponents(e * a.panels + row / mma16::kRows);
        for (int g = 0; g < a.groups; ++g)
          largest = max(largest, uint32_t{of_panel[g * mma16::kRows + row % mma16::kRows]});
      }
      __syncthreads();
      if (row < rows) scales[row] = e8m0_to_float(static_cast<uint8_t>(largest));
      __syncthreads();
    }
  }
}

__device__ bool has_nan(uint32_t four) {
  return ((four & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u) != 0;  // only 0x7f carries into bit 7
}

__global__ void __launch_bounds__(kThreads) mark_nan(const ExponentArgs a, int64_t count) {
  for (int64_t panel = blockIdx.x; panel < count; panel += gridDim.x) {
    const auto* const codes = reinterpret_cast<const uint4*>(a.codes(panel));
    for (int i = static_cast<int>(threadIdx.x); i < a.blocks * kVectors; i += kThreads) {
      const uint4 four = codes[i];
      if (!has_nan(four.x) && !has_nan(four.y) && !has_nan(four.z) && !has_nan(four.w)) continue;
      const int row = row_of_vector(i % kVectors), group = i / kVectors / a.group_blocks;
      a.exponents(panel)[group * mma16::kRows + row] = kNan;
    }
  }
}

}  // namespace

bool has_exponents(const KernelWeights& weights) {
  const MatrixShape& shape = weights.shape;
  return shape.key.dtype == DType::kF8E4M3 && mma16::scale_is_exponent(shape) &&
         (mma16::num_groups(shape) == 1 || mma16::group_cols(shape) % mma16::kCols == 0);
}

Exponents::Exponents(const KernelWeights& weights, bool one_per_row)
    : panels_(mma16::num_panels(weights.shape.n)),
      blocks_(mma16::num_blocks(weights.shape.k)),
      group_blocks_((mma16::group_cols(weights.shape) + mma16::kCols - 1) / mma16::kCols),
      groups_(mma16::num_groups(weights.shape)),
      one_per_row_(one_per_row) {}

Status Exponents::prepare(const KernelWeights& weights, const Queue& queue, Stream stream) const {
  const ExponentArgs args{weights.buffer.as<uint8_t>(),
                          static_cast<int64_t>(weights.sections.bytes),
                          static_cast<int64_t>(weights.sections.scales),
                          static_cast<int>(panels_),
                          static_cast<int>(blocks_),
                          static_cast<int>(groups_),
                          static_cast<int>(group_blocks_)};
  const int64_t panels = panels_ * weights.num_experts;
  if (!one_per_row_)
    return launch(queue, stream, "mark_nan", mark_nan, panels, kThreads, 0, args, panels);
  MORACLE_CHECK(
      launch(queue, stream, "scale_codes", scale_codes, panels, kThreads, 0, args, panels));
  return launch(queue, stream, "take_row_scales", take_row_scales, weights.num_experts, kThreads, 0,
                args, static_cast<int>(weights.num_experts));
}

}  // namespace moracle::cuda
