// Few rows of int8 times 4-bit codes, without decoded lines, in registers of 256 bits; see
// lines_avx2.h.
#pragma once

#include "kernels/cpu/decode/lines_codes_avx2.h"
#include "kernels/cpu/gemm/lines_avx2.h"

namespace moracle::cpu {
namespace {

// The unsigned operand of the instruction: code + kOffset. Two products of at most 15 or 24 times
// 128 are far below the limit of 16 bits.
struct I4Codes {
  static constexpr int kOffset = 8;
  struct Pair {
    __m256i low, high;
  };
  MORACLE_LINES_INLINE static Pair split(__m256i codes) {
    const __m256i nibble = _mm256_set1_epi8(15);
    codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-120));  // 8 in both halves
    return {_mm256_and_si256(codes, nibble), _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble)};
  }
};
struct E2M1Codes {
  static constexpr int kOffset = 12;
  using Pair = I4Codes::Pair;
  MORACLE_LINES_INLINE static Pair split(__m256i codes) {
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    return {_mm256_shuffle_epi8(values, _mm256_and_si256(codes, nibble)),
            _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble))};
  }
};

/// One panel at a time: two panels and four rows would need more registers than exist.
template <class Codes, int kRows>
void rows_of_codes(const LineBlock& b) {
  for (int unit = 0; unit < b.units; ++unit) {
    for (int p = 0; p < b.panels; ++p) {
      __m256i sum[kRows][2];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
      for (int64_t i = unit * b.unit_lines, end = i + b.unit_lines; i < end; ++i) {
        const std::byte* const line = b.lines[p] + i * kLineBytes;
        if (b.prefetch_every > 0) prefetch_line(b.prefetch[p] + i * kLineBytes);
        const auto first = Codes::split(load_half(line)),
                   second = Codes::split(load_half(line + kHalfBytes));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const std::byte* const x = b.x + r * b.x_stride + i * 8;
          const __m256i low = broadcast_bytes(x), high = broadcast_bytes(x + 4);
          sum[r][0] = add_products(sum[r][0], first.low, low);
          sum[r][1] = add_products(sum[r][1], second.low, low);
          sum[r][0] = add_products(sum[r][0], first.high, high);
          sum[r][1] = add_products(sum[r][1], second.high, high);
        }
      }
      __m256i kept[kRows][2];
      keep<kRows * 2>(&sum[0][0], &kept[0][0]);
#pragma GCC unroll 1
      for (int r = 0; r < kRows; ++r) {
        const int32_t x_sum = b.x_sum[r * b.x_sum_stride + unit];
        const __m256i offset = _mm256_set1_epi32(Codes::kOffset * x_sum);
        for (int half = 0; half < 2; ++half) {
          const __m256i exact = _mm256_sub_epi32(kept[r][half], offset);
          const __m256 dot = _mm256_cvtepi32_ps(without_zero(exact, b, p, unit, half, x_sum));
          add_scaled(dot, b, r, p, unit, half);
        }
      }
    }
  }
}

template <class Codes>
void multiply_codes(const LineBlock& b) {
  switch (b.rows) {
    case 1:
      return rows_of_codes<Codes, 1>(b);
    case 2:
      return rows_of_codes<Codes, 2>(b);
    case 3:
      return rows_of_codes<Codes, 3>(b);
    case 4:
      return rows_of_codes<Codes, 4>(b);
    case 5:
      return rows_of_codes<Codes, 5>(b);
    default:
      return rows_of_codes<Codes, 6>(b);
  }
}

constexpr CodeKernels kCodes = {
    multiply_codes<I4Codes>, multiply_codes<E2M1Codes>, f32_by_i4_avx2,   f32_by_i8_avx2,
    f32_by_e4m3_avx2,        f32_by_e2m1_avx2,          f32_by_bf16_avx2, f32_by_f16_avx2};

}  // namespace
}  // namespace moracle::cpu
