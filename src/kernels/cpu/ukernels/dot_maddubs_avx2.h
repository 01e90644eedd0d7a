// Few or many rows of int8 times 4-bit codes, without unpacked row blocks and without VNNI. Several
// pairs of products of 4-bit codes fit into 16 bits: sum them as words over a run of row blocks,
// then widen to i32. So the widening instruction runs once per run, not once per product.
#pragma once

#include "kernels/cpu/ukernels/halves_avx2.h"

namespace moracle::cpu {
namespace {

/// Row blocks of a run, whose sums fit into 16 bits. A row block has two pairs of products, which
/// one set of sums adds, or two sets.
template <class Codes, int kSets>
constexpr int64_t kRunLines = kSets*(32767 / (2 * 2 * Codes::kMost * 127));
static_assert(kRunLines<I4Bytes, 1> == 4 && kRunLines<E2M1Bytes, 1> == 2);

MORACLE_VECTOR_INLINE void add_words(__m256i& sum, __m256i w, __m256i x) {
  // Assembly keeps the order and the register: g++ 12 would add products first and spill sums.
  __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(_mm256_maddubs_epi16(w, x)));
}

/// The sums of one segment of one panel: more would need more registers than exist.
template <class Codes, int kRows, bool kPrefetches>
MORACLE_VECTOR_INLINE void segment_of_codes(const DotArgs& b, int first, int panel, int segment) {
  // Few rows have registers for two sets: fp4's run is then a segment of 32 columns.
  constexpr int kSets = kRows <= 2 && kRunLines<Codes, 1> < 4 ? 2 : 1;
  constexpr int64_t kBlocks = kRunLines<Codes, kSets>;
  const int every = kPrefetches ? __builtin_ctz(static_cast<unsigned>(b.prefetch_every)) : 0;
  const std::byte* const prefetch = b.prefetch[panel];
  const std::byte* const x = b.x + first * b.x_stride;
  const std::byte* const row_blocks = b.w[panel];
  const int64_t stride = b.x_stride;
  __m256i totals[kRows][2];
  __m256i(*total)[2] = totals;
  // Many totals stay in memory: the registers belong to the sums of a run.
  if constexpr (kRows > 2) __asm__("" : "+r"(total));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = _mm256_setzero_si256();
  const int64_t begin = segment * b.segment_blocks, end = begin + b.segment_blocks;
  for (int64_t i = begin; i < end;) {
    const int64_t stop = end - i < kBlocks ? end : i + kBlocks;
    __m256i sum[kSets][kRows][2];
#pragma GCC unroll 2
    for (int set = 0; set < kSets; ++set) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[set][r][0] = sum[set][r][1] = _mm256_setzero_si256();
    }
    for (; i < stop; ++i) {
      const std::byte* const row_block = row_blocks + i * kRowBlockBytes;
      if (kPrefetches && (i >> every) << every == i)
        prefetch_line(prefetch + (i >> every) * kRowBlockBytes);
#pragma GCC unroll 2
      for (int nibble = 0; nibble < 2; ++nibble) {
        const __m256i w[] = {nibbles<Codes>(load_half(row_block), nibble),
                             nibbles<Codes>(load_half(row_block + kVectorBytes), nibble)};
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i a = broadcast(x + r * stride + i * 8 + nibble * 4);
          add_words(sum[nibble % kSets][r][0], w[0], a);
          add_words(sum[nibble % kSets][r][1], w[1], a);
        }
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int set = 0; set < kSets; ++set) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256i widened = _mm256_madd_epi16(sum[set][r][half], ones);
          total[r][half] = _mm256_add_epi32(total[r][half], widened);
        }
      }
    }
  }
  add_segment<Codes::kOffset, kRows>(b, first, panel, segment, total);
}

template <class Codes, int kRows>
void rows_of_codes(const DotArgs& b, int first) {
  // Only the first rows prefetch the next panels: once is enough.
  const bool prefetches = first == 0 && b.prefetch_every > 0;
  for (int segment = 0; segment < b.segments; ++segment) {
    for (int panel = 0; panel < b.panels; ++panel) {
      prefetches ? segment_of_codes<Codes, kRows, true>(b, first, panel, segment)
                 : segment_of_codes<Codes, kRows, false>(b, first, panel, segment);
    }
  }
}

template <class Codes>
void multiply_codes(const DotArgs& b) {
  const int blocks = (b.rows + kSkinnyRows - 1) / kSkinnyRows;
  for (int block = 0; block < blocks; ++block) {
    const int first = b.rows * block / blocks;
    switch (b.rows * (block + 1) / blocks - first) {
      case 1:
        rows_of_codes<Codes, 1>(b, first);
        break;
      case 2:
        rows_of_codes<Codes, 2>(b, first);
        break;
      case 3:
        rows_of_codes<Codes, 3>(b, first);
        break;
      default:
        rows_of_codes<Codes, 4>(b, first);
        break;
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
