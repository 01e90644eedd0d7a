// Rows of int16 times codes: one instruction makes 16 products, twice as many as an f32
// multiply-add. Shifts widen codes to words, two columns of a row in a dword:
//
//   4-bit codes   columns 0 and 2, 1 and 3, 4 and 6, 5 and 7
//   bytes         columns 0 and 2, 1 and 3
//
// Rows have their columns in this order. Integer sums of a segment are exact.
#pragma once

#include "kernels/cpu/ukernels/scale_sums_avx2.h"

namespace moracle::cpu {
namespace {

// Rows at once: 12 sums, two registers of words, activations and their products.
constexpr int kWordRows = 6;

// kVectors: words of a half row block, in registers. words: vector v of them, from memory, because
// twelve sums leave no register for the codes.

struct I4Words {
  static constexpr int kVectors = 4;
  MORACLE_UKERNEL_INLINE static __m256i words(const std::byte* half, int v) {
    const __m256i codes = load_half(half);
    const int left = v == 0 ? 12 : v == 1 ? 4 : v == 2 ? 8 : 0;
    return _mm256_srai_epi16(left == 0 ? codes : _mm256_slli_epi16(codes, left), 12);
  }
};

struct I8Words {
  static constexpr int kVectors = 2;
  MORACLE_UKERNEL_INLINE static __m256i words(const std::byte* half, int v) {
    const __m256i codes = load_half(half);
    return _mm256_srai_epi16(v == 0 ? _mm256_slli_epi16(codes, 8) : codes, 8);
  }
};

/// Twice the values.
struct E2M1Words {
  static constexpr int kVectors = 4;
  MORACLE_UKERNEL_INLINE static __m256i words(const std::byte* half, int v) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i codes = load_half(half), low = v < 2 ? codes : _mm256_srli_epi16(codes, 4);
    const __m256i bytes = _mm256_shuffle_epi8(table, _mm256_and_si256(low, _mm256_set1_epi8(15)));
    return _mm256_srai_epi16(v % 2 == 0 ? _mm256_slli_epi16(bytes, 8) : bytes, 8);
  }
};

#if defined(__AVXVNNI__)
// The fused instruction waits four cycles for its sum, an addition one. Few rows have few sums.
constexpr int kFusedRows = 4;
#endif

template <int kRows>
MORACLE_UKERNEL_INLINE void add_word_products(__m256i& sum, __m256i w, __m256i x) {
#if defined(__AVXVNNI__)
  if constexpr (kRows >= kFusedRows) {
    sum = _mm256_dpwssd_avx_epi32(sum, w, x);
    return;
  }
#endif
  // Assembly keeps the register: g++ 12 would add products first and spill sums.
  __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(w, x)));
}

template <class Codes, int kRows, bool kPrefetches>
MORACLE_UKERNEL_INLINE void segment_of_words(const DotArgs& b, int first, int panel, int segment) {
  const int every = kPrefetches ? __builtin_ctz(static_cast<unsigned>(b.prefetch_every)) : 0;
  const std::byte* const x = b.x + first * b.x_stride;
  const std::byte* const row_blocks = b.w[panel];
  const int64_t stride = b.x_stride;
  __m256i sum[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  for (int64_t i = segment * b.segment_blocks, end = i + b.segment_blocks; i < end; ++i) {
    if (kPrefetches && (i >> every) << every == i) prefetch_next(b, panel, i >> every);
    const std::byte* const row_block = row_blocks + i * kRowBlockBytes;
#pragma GCC unroll 4
    for (int v = 0; v < Codes::kVectors; ++v) {
      const __m256i w[] = {Codes::words(row_block, v), Codes::words(row_block + kHalfBytes, v)};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256i a = broadcast_bytes(x + r * stride + (i * Codes::kVectors + v) * 4);
        add_word_products<kRows>(sum[r][0], w[0], a);
        add_word_products<kRows>(sum[r][1], w[1], a);
      }
    }
  }
  __m256i kept[kRows][2];
  keep<kRows * 2>(&sum[0][0], &kept[0][0]);
  add_segment<0, kRows, true>(b, first, panel, segment, kept);
}

template <class Codes, int kRows>
void rows_of_words(const DotArgs& b, int first) {
  // Only the first rows prefetch the next panels: once is enough.
  const bool prefetches = first == 0 && b.prefetch_every > 0;
  for (int segment = 0; segment < b.segments; ++segment) {
    for (int panel = 0; panel < b.panels; ++panel) {
      prefetches ? segment_of_words<Codes, kRows, true>(b, first, panel, segment)
                 : segment_of_words<Codes, kRows, false>(b, first, panel, segment);
    }
  }
}

/// Any number of rows of int16 times codes.
template <class Codes>
void multiply_words(const DotArgs& b) {
  const int blocks = (b.rows + kWordRows - 1) / kWordRows;
  for (int block = 0; block < blocks; ++block) {
    const int first = b.rows * block / blocks;
    switch (b.rows * (block + 1) / blocks - first) {
      case 1:
        rows_of_words<Codes, 1>(b, first);
        break;
      case 2:
        rows_of_words<Codes, 2>(b, first);
        break;
      case 3:
        rows_of_words<Codes, 3>(b, first);
        break;
      case 4:
        rows_of_words<Codes, 4>(b, first);
        break;
      case 5:
        rows_of_words<Codes, 5>(b, first);
        break;
      default:
        rows_of_words<Codes, 6>(b, first);
        break;
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
