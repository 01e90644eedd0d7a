// The end of a segment for integer kernels that multiply codes: exact sums leave the registers
// scaled.
#pragma once

#include "kernels/cpu/ukernels/dot_avx2.h"

namespace moracle::cpu {
namespace {

/// sum += x_scale · w_scale · (total - (zero + kOffset) · Σ x), for some rows of one panel and one
/// segment. kHasXScale: b.x_scale is not null.
template <int kOffset, int kRows, bool kHasXScale = false>
MORACLE_UKERNEL_INLINE void add_segment(const DotArgs& b, int first, int panel, int segment,
                                        const __m256i (*total)[2]) {
  // Local copies, which no store below can alias: in groups of 32 columns a third faster.
  const bool begins = b.overwrite && segment == 0, has_zeros = b.w_zero[panel] != nullptr;
  const float* x_scale = nullptr;
  if (kHasXScale || b.x_scale != nullptr)
    x_scale = b.x_scale + first * b.x_scale_stride + segment * b.x_scale_step;
  const int32_t* const x_sum = b.x_sum + first * b.x_sum_stride + segment;
  const int64_t x_scale_stride = b.x_scale_stride, x_sum_stride = b.x_sum_stride;
  float* sum = b.sum[panel] + first * kPanelRows;
  const __m256 scale[] = {segment_scale(b, panel, segment, 0), segment_scale(b, panel, segment, 1)};
  __m256i zero[] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  if (has_zeros) {
    zero[0] = widen_bytes(b.w_zero[panel] + segment * kPanelRows);
    zero[1] = widen_bytes(b.w_zero[panel] + segment * kPanelRows + kHalfRows);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, sum += kPanelRows) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i exact = total[r][half];
      if constexpr (kOffset != 0) {
        const __m256i offset = _mm256_set1_epi32(kOffset * x_sum[r * x_sum_stride]);
        exact = _mm256_sub_epi32(exact, offset);
      }
      if (has_zeros) {
        const __m256i x = _mm256_set1_epi32(x_sum[r * x_sum_stride]);
        exact = _mm256_sub_epi32(exact, _mm256_mullo_epi32(zero[half], x));
      }
      __m256 dot = _mm256_cvtepi32_ps(exact);
      if (kHasXScale || x_scale != nullptr)
        dot = _mm256_mul_ps(dot, _mm256_set1_ps(x_scale[r * x_scale_stride]));
      float* const to = sum + half * kHalfRows;
      const __m256 before = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
      _mm256_storeu_ps(to, _mm256_fmadd_ps(dot, scale[half], before));
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
