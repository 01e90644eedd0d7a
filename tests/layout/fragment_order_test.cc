// Compares the order in which wgmma reads activations with the layout of the weights.
#include "layout/fragment_order.h"

#include <gtest/gtest.h>

#include "layout/mma16.h"

namespace moracle::fragment_order_test {
namespace {

// Lane t of a quad holds, as instruction operand, the 4-byte words t and 4 + t of every 8 words of
// x. Its codes must be those of the columns in these words.
TEST(FragmentOrder, GivesEachLaneTheColumnsOfItsWeights) {
  for (const int element_bytes : {1, 2}) {
    const int columns = 4 / element_bytes;  // of a word
    for (int position = 0; position < fragment_order::block_words(element_bytes); ++position) {
      const auto word = static_cast<int>(fragment_order::word_at(element_bytes, position));
      for (int c = 0; c < columns; ++c) {
        const int column = word * columns + c, bits = 8 * element_bytes;
        const int byte = mma16::block_bit(bits, 0, column) / 8;
        // 16 bits: a lane's codes are contiguous, 512 bytes for each instruction. 8 bits: one
        // instruction, and matrices of 8 rows and 16 bytes.
        const bool wide = element_bytes == 2;
        EXPECT_EQ(wide ? byte % 512 / 16 : byte % 16 / 4, position % 4) << "lane of " << column;
        EXPECT_EQ(byte / 512, wide ? position / 8 : 0) << "instruction of " << column;
        EXPECT_EQ(wide ? byte % 16 / 8 : byte / 128, position % 8 / 4) << "half of " << column;
        EXPECT_EQ(byte % 4, c * element_bytes) << "place in the word of " << column;
      }
    }
  }
}

TEST(FragmentOrder, IsAPermutationOfEachBlockOf32Columns) {
  for (const int element_bytes : {1, 2}) {
    for (int64_t word = 0; word < 3 * fragment_order::block_words(element_bytes); ++word) {
      const int64_t position = fragment_order::position(element_bytes, word);
      EXPECT_EQ(fragment_order::word_at(element_bytes, position), word);
      EXPECT_EQ(position / fragment_order::block_words(element_bytes),
                word / fragment_order::block_words(element_bytes));
    }
  }
}

}  // namespace
}  // namespace moracle::fragment_order_test
