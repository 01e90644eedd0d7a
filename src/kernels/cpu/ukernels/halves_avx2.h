// Halves of row blocks in registers of 256 bits, and the end of a segment for integer kernels that
// multiply codes: exact sums leave the registers scaled.
#pragma once

#include "kernels/cpu/ukernels/dot.h"

namespace moracle::cpu {
namespace {

MORACLE_VECTOR_INLINE __m256i load_half(const std::byte* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
MORACLE_VECTOR_INLINE __m256i broadcast(const std::byte* p) {
  return as<__m256i>(broadcast_bytes(p));
}
template <class Codes>
MORACLE_VECTOR_INLINE __m256i nibbles(__m256i codes, int half) {
  return as<__m256i>(Codes::values(as<Bits>(codes), half));
}

/// sum += x_scale · w_scale · (total - (zero + kOffset) · Σ x), for some rows of one panel and one
/// segment.
template <int kOffset, int kRows>
MORACLE_VECTOR_INLINE void add_segment(const DotArgs& b, int first, int panel, int segment,
                                       const __m256i (*total)[2]) {
  // Local copies, which no store below can alias: in groups of 32 columns a third faster.
  const bool begins = b.overwrite && segment == 0, has_zeros = b.w_zero[panel] != nullptr;
  const float* x_scale = nullptr;
  if (b.x_scale != nullptr)
    x_scale = b.x_scale + first * b.x_scale_stride + segment * b.x_scale_step;
  const int32_t* const x_sum = b.x_sum + first * b.x_sum_stride + segment;
  const int64_t x_scale_stride = b.x_scale_stride, x_sum_stride = b.x_sum_stride;
  float* sum = b.sum[panel] + first * kPanelRows;
  const Vec scale[] = {segment_scale(b, panel, segment, 0), segment_scale(b, panel, segment, 1)};
  Ints zero[2] = {};
  if (has_zeros) {
    zero[0] = widen_bytes(b.w_zero[panel] + segment * kPanelRows);
    zero[1] = widen_bytes(b.w_zero[panel] + segment * kPanelRows + kLanes);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, sum += kPanelRows) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Ints exact = as<Ints>(total[r][half]);
      if constexpr (kOffset != 0) exact -= kOffset * x_sum[r * x_sum_stride];
      if (has_zeros) exact -= zero[half] * x_sum[r * x_sum_stride];
      Vec dot = to_float(exact);
      if (x_scale != nullptr) dot = dot * splat(x_scale[r * x_scale_stride]);
      float* const to = sum + half * kLanes;
      store(to, multiply_add(dot, scale[half], begins ? Vec{} : load(to)));
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
