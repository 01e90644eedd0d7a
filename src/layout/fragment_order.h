// Fragment order of activation rows, for wgmma on weights in layout mma16. A lane of mma16 has 8
// neighbouring columns of each 32, but the instruction gives the lane other positions: of every 8
// words along k, lane t of a quad has words t and 4 + t. The rows are permuted in words of 4 bytes
// within blocks of 32 columns, so that both agree:
//
//   16 bits, 16 words a block    word 4·t + 2·s + v goes to 8·s + 4·v + t   (instruction s, half v)
//      natural   t0: 0 1 | 2 3   t1: 4 5 | 6 7   t2: 8 9 | 10 11   t3: 12 13 | 14 15
//      stored    s0: 0 4 8 12  1 5 9 13          s1: 2 6 10 14  3 7 11 15
//   8 bits, 8 words a block      word 2·t + v goes to 4·v + t
//      natural   t0: 0 1   t1: 2 3   t2: 4 5   t3: 6 7
//      stored    0 2 4 6  1 3 5 7
//
// Unpacking 4-bit weights to 8 bits ends with columns in another order, for which the eight columns
// of a lane are permuted first (Bytes):
//
//   kInt4     0 4 1 5 | 2 6 3 7     a mask takes every second nibble
//   kFp4      0 2 4 6 | 1 3 5 7     a permutation looks up four neighbouring nibbles
//
// Rows are padded with zeros to whole blocks.
#pragma once

#include <cstdint>

namespace moracle::fragment_order {

/// Returns four of the eight bytes of a and b. `selector` has their numbers in its nibbles.
constexpr uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  uint32_t four = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = selector >> (4 * i) & 7u;
    four |= ((at < 4 ? a : b) >> (8 * (at % 4)) & 0xffu) << (8 * i);
  }
  return four;
#endif
}

/// Order of a lane's eight columns of 8 bits: selectors of the first and the second word.
struct Bytes {
  uint32_t first, second;
};
inline constexpr Bytes kNatural{0x3210, 0x7654}, kInt4{0x5140, 0x7362}, kFp4{0x6420, 0x7531};

/// Words of a block of 32 columns.
constexpr int block_words(int element_bytes) {
  return 8 * element_bytes;
}
/// Position of natural word `word` of a row, in words.
constexpr int64_t position(int element_bytes, int64_t word) {
  const int64_t block = word & ~int64_t{block_words(element_bytes) - 1};
  const int w = static_cast<int>(word - block);
  if (element_bytes == 2) return block + w / 2 % 2 * 8 + w % 2 * 4 + w / 4;
  return block + w % 2 * 4 + w / 2;
}
/// Natural word that lies at `position`.
constexpr int64_t word_at(int element_bytes, int64_t position) {
  const int64_t block = position & ~int64_t{block_words(element_bytes) - 1};
  const int p = static_cast<int>(position - block);
  if (element_bytes == 2) return block + p % 4 * 4 + p / 8 * 2 + p / 4 % 2;
  return block + p % 4 * 2 + p / 4;
}

}  // namespace moracle::fragment_order
