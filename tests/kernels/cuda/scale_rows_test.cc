// Checks where scales by group lie (kernels/cuda/gemm_sm90/scale_rows.h).
#include "kernels/cuda/gemm_sm90/scale_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace moracle::scale_rows_test {
namespace {

TEST(ScaleRows, ExpertsBeginAlignedAndDoNotOverlap) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const int experts = 1 + static_cast<int>(random() % 40);
    std::vector<int> offsets{0};
    for (int e = 0; e < experts; ++e)
      offsets.push_back(offsets.back() + static_cast<int>(random() % 3 == 0 ? 0 : random() % 300));
    int end = 0;
    for (int e = 0; e < experts; ++e) {
      const int begin = cuda::scale_row(offsets[e], e), rows = offsets[e + 1] - offsets[e];
      EXPECT_EQ(begin % 4, 0);
      EXPECT_GE(begin, end);
      for (int row = 0; row < rows; row += 64)
        EXPECT_EQ(cuda::scale_row(offsets[e] + row, e), begin + row);
      end = begin + (rows + 3) / 4 * 4;  // TMA copies whole multiples
    }
    EXPECT_LE(end, cuda::scale_rows(offsets.back(), experts));
  }
}

}  // namespace
}  // namespace moracle::scale_rows_test
