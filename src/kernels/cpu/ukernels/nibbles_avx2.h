// 4-bit codes as bytes, in registers of 256 bits.
#pragma once

#include "kernels/cpu/ukernels/dot_avx2.h"

namespace moracle::cpu {
namespace {

// The unsigned operand of the instruction: code + kOffset. `nibble` 1: the upper halves of bytes.
struct I4Codes {
  static constexpr int kOffset = 8;
  static constexpr int kMost = 15;
  MORACLE_UKERNEL_INLINE static __m256i values(__m256i codes, int nibble) {
    codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-120));  // 8 in both halves
    return _mm256_and_si256(nibble == 0 ? codes : _mm256_srli_epi16(codes, 4),
                            _mm256_set1_epi8(15));
  }
};
struct E2M1Codes {
  static constexpr int kOffset = 12;
  static constexpr int kMost = 24;
  MORACLE_UKERNEL_INLINE static __m256i values(__m256i codes, int nibble) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    codes = nibble == 0 ? codes : _mm256_srli_epi16(codes, 4);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  }
};

}  // namespace
}  // namespace moracle::cpu
