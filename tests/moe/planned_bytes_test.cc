// Tests that loading takes the planned bytes, also if the two matrices of a layer differ in more
// than size.
#include <gtest/gtest.h>

#include "checkpoint/producers/fp8_synthetic.h"
#include "checkpoint/producers/mxfp4_synthetic.h"
#include "moe/layer_on_rows.h"

namespace moracle::testing::planned_bytes_test {
namespace {

void expect_planned_as_loaded(const SyntheticCheckpoint& made) {
  const auto checkpoint = made.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto layer = checkpoint->moe_layer(0);
  ASSERT_TRUE(layer) << layer.error().to_string();
  for (const std::string& row : cpu_rows(layer->spec)) {
    auto weights = checkpoint->moe_layer(0);
    ASSERT_TRUE(weights) << weights.error().to_string();
    Request request;
    request.layer = weights->spec;
    request.backend = row;
    const Selection selection = select(request, Machine::here());
    ASSERT_TRUE(selection.plan) << explain(selection);
    const auto moe = FusedMoe::make(std::move(*weights), selection, *open_device("cpu", 1));
    ASSERT_TRUE(moe) << moe.error().to_string();
    EXPECT_EQ(selection.plan->weight_bytes, moe->weight_bytes()) << row;
  }
}

TEST(PlannedBytes, CoverBiasInOneMatrixOnly) {
  auto checkpoint = fused_plain(false);
  expect_planned_as_loaded(checkpoint);
  checkpoint.tensors.erase(kFusedExperts + ".down_proj_bias");
  EXPECT_FALSE(checkpoint.experts()->spec.stored.empty());
  expect_planned_as_loaded(checkpoint);
}

TEST(PlannedBytes, CoverBlocksThatEndInsideAStack) {
  for (const GroupShape block : {GroupShape{16, 16}, GroupShape{12, 20}, GroupShape{5, 7}})
    expect_planned_as_loaded(fp8(block));
}

TEST(PlannedBytes, FollowSchemeForOrdinaryLayers) {
  const auto weights = fused_plain(false).experts();
  ASSERT_TRUE(weights);
  EXPECT_TRUE(weights->spec.stored.empty());
}

}  // namespace
}  // namespace moracle::testing::planned_bytes_test
