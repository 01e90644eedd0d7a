// Layers that nccl_ep refuses, with the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/cuda/nccl_ep/nccl_ep_shape.h"

namespace moracle::nccl_ep_shape_test {
namespace {

using ::testing::HasSubstr;

// Qwen3-30B-A3B with FP8 blocks: 16 scales for each token.
BatchShape good() {
  BatchShape shape;
  shape.num_experts = 128, shape.top_k = 8, shape.hidden_size = 2048, shape.max_tokens = 128;
  shape.row = DType::kF8E4M3, shape.cols = 2048, shape.num_scales = 16;
  return shape;
}
void expect_refused(const BatchShape& shape, const char* reason) {
  const Status status = check_ep_shape(shape);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().to_string(), HasSubstr(reason));
}

TEST(NcclEpShape, CodesInBlocksServe) {
  EXPECT_TRUE(check_ep_shape(good()));
}
TEST(NcclEpShape, HiddenSizeOutsideItsStepsIsRefused) {
  BatchShape shape = good();
  shape.hidden_size = shape.cols = 2880;
  expect_refused(shape,
                 "exchange 'nccl-ep': needs a hidden size that is a multiple of 512, at most "
                 "8192; it is 2880");
}
TEST(NcclEpShape, OneScalePerTokenIsRefused) {
  BatchShape shape = good();
  shape.num_scales = 1;
  expect_refused(shape,
                 "needs scales of a token in a multiple of 16 bytes; the scheme has 4 bytes");
}
TEST(NcclEpShape, ManyExpertsAreRefused) {
  BatchShape shape = good();
  shape.num_experts = 2048;
  expect_refused(shape, "needs at most 1024 experts; there are 2048");
  shape = good();
  shape.top_k = 20;
  expect_refused(shape, "needs at most 16 experts per token; there are 20");
}
TEST(NcclEpShape, RowsOfOddBytesAreRefused) {
  BatchShape shape = good();
  shape.cols = 2040;
  expect_refused(shape, "needs rows of a multiple of 16 bytes; they have 2040");
}

}  // namespace
}  // namespace moracle::nccl_ep_shape_test
