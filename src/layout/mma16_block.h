// Panels of 16 rows for tensor cores that multiply 16 rows by the columns of a few tokens (mma.sync
// m16n8). A block has 16 rows and 32 columns. In the first operand lane 4·g + t has rows 2·g and
// 2·g + 1 and columns 8·t to 8·t + 7 of the block. A lane reads the same columns of an activation
// row. Element (r, c) of a block, with g = r/2, h = r%2, t = c/8, j = c%8, begins at byte (for 4
// bits: nibble)
//
//   16 bits    (j/4)·512 + (4·g + t)·16 + (j%4/2)·8 + h·4 + (j%2)·2     16 columns of one
//                                                                       instruction, then 16 more
//   8 bits     h·256 + (j/4)·128 + g·16 + 4·t + j%4                     four matrices of 8 rows and
//                                                                       16 bytes
//   4 bits     2·((4·g + t)·8 + h·4) + j/2 + 4·(j%2)                    one mask extracts the two
//                                                                       columns of a register
//   scales     (g·16 + r)·4 per panel    f32, or a byte: an exponent, or e4m3 by a factor per row
//   zero points g·16 + r per panel       i8
//   minimums   (g·16 + r)·4 per panel    f32, minimum + zero point · scale, rounded once; then
//                                        there are no zero points
//
// A lane's 4- or 16-bit codes are contiguous. 8-bit codes form matrices of 8 rows of 16 bytes, one
// row for each row of weights. ldmatrix spreads such a matrix over the lanes, and wgmma reads it
// from shared memory.
//
// Blocks of a panel follow one another along the columns. Rows are padded to 16 and columns to 32,
// with codes 0 and scales 0. Rows 2·g and 2·g + 1 are rows g and g + 8 of the instruction, so the
// results of a lane are adjacent in memory.
#pragma once

#include <cstdint>

namespace moracle::mma16 {

inline constexpr int kRows = 16;
inline constexpr int kCols = 32;  ///< columns of a block

/// Size of a block in bytes, for codes of `code_bits` bits.
constexpr int block_bytes(int code_bits) {
  return kRows * kCols * code_bits / 8;
}
constexpr int64_t num_blocks(int64_t k) {
  return (k + kCols - 1) / kCols;
}
constexpr int64_t num_panels(int64_t n) {
  return (n + kRows - 1) / kRows;
}
/// The nibble, in a lane's 32 bits, of column j of its eight columns.
constexpr int nibble(int j) {
  return j / 2 + 4 * (j % 2);
}
/// Bit offset of element (r, c) in a block, for host and device code.
constexpr int block_bit(int code_bits, int r, int c) {
  const int lane = 4 * (r / 2) + c / 8, h = r % 2, j = c % 8;
  if (code_bits == 4) return lane * 64 + h * 32 + nibble(j) * 4;
  if (code_bits == 8) return h * 2048 + j / 4 * 1024 + lane * 32 + j % 4 * 8;
  return j / 4 * 4096 + lane * 128 + j % 4 / 2 * 64 + h * 32 + j % 2 * 16;
}
/// Bit offset of code (r, c) in the codes of a matrix with k columns.
constexpr int64_t code_bit(int code_bits, int64_t k, int64_t r, int64_t c) {
  const int64_t block = r / kRows * num_blocks(k) + c / kCols;
  return block * block_bytes(code_bits) * 8 +
         block_bit(code_bits, static_cast<int>(r % kRows), static_cast<int>(c % kCols));
}

}  // namespace moracle::mma16
