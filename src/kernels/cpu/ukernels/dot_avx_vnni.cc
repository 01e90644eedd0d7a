// AVX2 with AVX-VNNI: vpdpbusd adds four int8 products per lane, vpdpwssd two int16 products.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_int16_avx2.h"
#include "kernels/cpu/ukernels/nibbles_avx2.h"
#include "kernels/cpu/ukernels/scale_sums_avx2.h"

namespace moracle::cpu {
namespace {

/// One panel at a time: two panels and four rows would need more registers than exist.
template <class Codes, int kRows>
void rows_of_codes(const DotArgs& b) {
  for (int segment = 0; segment < b.segments; ++segment) {
    for (int p = 0; p < b.panels; ++p) {
      __m256i sum[kRows][2];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
      for (int64_t i = segment * b.segment_blocks, end = i + b.segment_blocks; i < end; ++i) {
        const std::byte* const row_block = b.w[p] + i * kRowBlockBytes;
        if (b.prefetch_every > 0) prefetch_line(b.prefetch[p] + i * kRowBlockBytes);
        const __m256i codes[] = {load_half(row_block), load_half(row_block + kHalfBytes)};
        const __m256i w[2][2] = {{Codes::values(codes[0], 0), Codes::values(codes[0], 1)},
                                 {Codes::values(codes[1], 0), Codes::values(codes[1], 1)}};
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const std::byte* const x = b.x + r * b.x_stride + i * 8;
          const __m256i low = broadcast_bytes(x), high = broadcast_bytes(x + 4);
          sum[r][0] = add_products(sum[r][0], w[0][0], low);
          sum[r][1] = add_products(sum[r][1], w[1][0], low);
          sum[r][0] = add_products(sum[r][0], w[0][1], high);
          sum[r][1] = add_products(sum[r][1], w[1][1], high);
        }
      }
      __m256i kept[kRows][2];
      keep<kRows * 2>(&sum[0][0], &kept[0][0]);
      add_segment<Codes::kOffset, kRows>(b, 0, p, segment, kept);
    }
  }
}

template <class Codes>
void multiply_codes(const DotArgs& b) {
  if (b.rows > kSkinnyRows) {
    // Two halves: with more than four rows g++ 12 spills sums.
    DotArgs half = b;
    half.rows = b.rows / 2;
    multiply_codes<Codes>(half);
    half.x += half.rows * b.x_stride;
    half.x_sum += half.rows * b.x_sum_stride;
    if (b.x_scale != nullptr) half.x_scale += half.rows * b.x_scale_stride;
    for (int p = 0; p < b.panels; ++p) half.sum[p] += half.rows * kPanelRows;
    half.prefetch_every = 0;
    half.rows = b.rows - half.rows;
    return multiply_codes<Codes>(half);
  }
  switch (b.rows) {
    case 1:
      return rows_of_codes<Codes, 1>(b);
    case 2:
      return rows_of_codes<Codes, 2>(b);
    case 3:
      return rows_of_codes<Codes, 3>(b);
    default:
      return rows_of_codes<Codes, 4>(b);
  }
}

}  // namespace

void dot_x_i8_w_i8_r32_avxvnni(const DotArgs& b) {
  multiply<Int8Dot>(b);
}
void dot_x_i8_w_i4_r6_avxvnni(const DotArgs& b) {
  multiply_codes<I4Codes>(b);
}
void dot_x_i8_w_e2m1_r6_avxvnni(const DotArgs& b) {
  multiply_codes<E2M1Codes>(b);
}
void dot_x_i16_w_i4_r32_avxvnni(const DotArgs& b) {
  multiply_words<I4Words>(b);
}
void dot_x_i16_w_i8_r32_avxvnni(const DotArgs& b) {
  multiply_words<I8Words>(b);
}
void dot_x_i16_w_e2m1_r32_avxvnni(const DotArgs& b) {
  multiply_words<E2M1Words>(b);
}

}  // namespace moracle::cpu

#endif
