// Rows of int16 times codes: one instruction makes 16 products, twice as many as an f32
// multiply-add. Shifts widen codes to words, two columns of a row in a dword:
//
//   4-bit codes   columns 0 and 2, 1 and 3, 4 and 6, 5 and 7
//   bytes         columns 0 and 2, 1 and 3
//
// Rows have their columns in this order. Integer sums of a segment are exact.
#pragma once

#include "kernels/cpu/ukernels/halves_avx2.h"

namespace moracle::cpu {
namespace {

// kVectors: words of a half row block, in registers. words: vector v of them, from memory, because
// twelve sums leave no register for the codes.

struct I4Words {
  static constexpr int kVectors = 4;
  MORACLE_VECTOR_INLINE static __m256i words(const std::byte* half, int v) {
    const __m256i codes = load_half(half);
    const int left = v == 0 ? 12 : v == 1 ? 4 : v == 2 ? 8 : 0;
    return _mm256_srai_epi16(left == 0 ? codes : _mm256_slli_epi16(codes, left), 12);
  }
};

struct I8Words {
  static constexpr int kVectors = 2;
  MORACLE_VECTOR_INLINE static __m256i words(const std::byte* half, int v) {
    const __m256i codes = load_half(half);
    return _mm256_srai_epi16(v == 0 ? _mm256_slli_epi16(codes, 8) : codes, 8);
  }
};

/// Twice the values.
struct E2M1Words {
  static constexpr int kVectors = 4;
  MORACLE_VECTOR_INLINE static __m256i words(const std::byte* half, int v) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i codes = load_half(half), low = v < 2 ? codes : _mm256_srli_epi16(codes, 4);
    const __m256i bytes = _mm256_shuffle_epi8(table, _mm256_and_si256(low, _mm256_set1_epi8(15)));
    return _mm256_srai_epi16(v % 2 == 0 ? _mm256_slli_epi16(bytes, 8) : bytes, 8);
  }
};

// The fused instruction waits four cycles for its sum, an addition one. Few rows have few sums.
constexpr int kFusedRows = 4;

template <class Codes>
struct WordsDot : IntegersDot {
  using Weights = __m256i;
  static constexpr int kCalls = Codes::kVectors;
  static constexpr int kMostRows = 6;  // 12 sums, two registers of words, activations, products
  MORACLE_VECTOR_INLINE static Sum begin(const int32_t*) { return Sum{}; }
  MORACLE_VECTOR_INLINE static Weights weights(const std::byte* half, int v) {
    return Codes::words(half, v);
  }
  MORACLE_VECTOR_INLINE static __m256i activations(const std::byte* p) { return broadcast(p); }
  template <int kRows>
  MORACLE_VECTOR_INLINE static void add(Sum& sum, __m256i x, Weights w) {
#if defined(__AVXVNNI__)
    if constexpr (kRows >= kFusedRows) {
      sum = as<Ints>(_mm256_dpwssd_avx_epi32(as<__m256i>(sum), w, x));
      return;
    }
#endif
    // Assembly keeps the register: g++ 12 would add products first and spill sums.
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(w, x)));
  }
  MORACLE_VECTOR_INLINE static Vec finish(Sum sum) {
    return to_float(sum);
  }
};

}  // namespace
}  // namespace moracle::cpu
