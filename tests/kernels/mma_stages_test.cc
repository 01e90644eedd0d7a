// How many stages the tiles of cuda-sm80 take on GPUs with less shared memory than an H200.
#include <gtest/gtest.h>

#include "kernels/cuda/gemm_sm80/mma_kernels.h"

namespace moracle::cuda {
namespace {

constexpr int kBeside = 1024 + 96;  // reserved by CUDA, and the slots of tiles
constexpr int kAda = 100 * 1024, kA100 = 164 * 1024, kHopper = 228 * 1024;  // of an SM

MmaKernel kernel(int stage_bytes, int most_stages, int per_sm) {
  return {nullptr, 128, 128, 128, stage_bytes, most_stages, per_sm};
}

TEST(MmaStages, AnSmRunsAsManyCtasAsWanted) {
  const MmaKernel int4 = kernel(21 * 1024, 4, 2);  // 128 x 64 with bf16 activations
  EXPECT_EQ(mma_stages(int4, kAda, kBeside), 2);
  EXPECT_EQ(mma_stages(int4, kA100, kBeside), 3);
  EXPECT_EQ(mma_stages(int4, kHopper, kBeside), 4);
  for (int bytes = 1024; bytes <= 24 * 1024; bytes += 16) {
    for (int ctas : {1, 2, 3}) {
      const int stages = mma_stages(kernel(bytes, 4, ctas), kAda, kBeside);
      ASSERT_GE(stages, 2);
      ASSERT_LE(stages, 4);
      const bool fits = ctas * (stages * bytes + kBeside) <= kAda;
      const bool two_would = ctas * (2 * bytes + kBeside) <= kAda;
      ASSERT_EQ(fits, two_would) << bytes << " bytes, " << ctas << " CTAs";
    }
  }
}

TEST(MmaStages, FewerCtasTakeWhatLargeStagesLeave) {
  const MmaKernel bf16 = kernel(33 * 1024, 3, 2);  // 128 x 128
  EXPECT_EQ(mma_stages(bf16, kAda, kBeside), 2);   // of the only CTA: three take 99 KiB and more
  EXPECT_EQ(mma_stages(bf16, kA100, kBeside), 2);
  EXPECT_EQ(mma_stages(bf16, kHopper, kBeside), 3);
  const MmaKernel smaller = kernel(32 * 1024, 3, 2);
  EXPECT_EQ(mma_stages(smaller, kAda, kBeside), 3);
}

TEST(MmaStages, TakesTheMostWhereAllFit) {
  EXPECT_EQ(mma_stages(kernel(9 * 1024, 4, 3), kHopper, kBeside), 4);
  EXPECT_EQ(mma_stages(kernel(9 * 1024, 3, 3), kHopper, kBeside), 3);
}

}  // namespace
}  // namespace moracle::cuda
