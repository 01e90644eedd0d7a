// Tests the router of one layer of every available checkpoint, from stored logits to stored choice.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/safetensors/safetensors.h"  // only to read the reference file
#include "checkpoint/safetensors_image.h"
#include "kernels/ops.h"
#include "moracle/moracle.h"
#include "support/stored_checkpoints.h"

namespace moracle::stored_routers_test {
namespace {

namespace fs = std::filesystem;

class StoredRouters : public ::testing::TestWithParam<std::string> {};

TEST_P(StoredRouters, MatchStoredIdsAndWeights) {
  const auto checkpoint = Checkpoint::open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto layer = checkpoint->moe_layer(1);
  ASSERT_TRUE(layer) << layer.error().to_string();
  const auto reference = testing::SafetensorsImage::open(GetParam() + "/reference.safetensors");
  ASSERT_TRUE(reference) << reference.error().to_string();
  const TensorView& logits = reference->tensors().at("moe.router_logits");
  const TensorView& ids = reference->tensors().at("moe.topk_ids");
  const TensorView& weights = reference->tensors().at("moe.topk_weights");
  const int64_t tokens = logits.shape[0], experts = logits.shape[1], top_k = ids.shape[1];
  ASSERT_EQ(top_k, layer->spec.top_k);

  std::vector<float> bias;
  if (layer->spec.routing.correction_bias) {
    const auto read =
        checkpoint->vector("model.layers.1.mlp.gate.e_score_correction_bias", experts);
    ASSERT_TRUE(read) << read.error().to_string();
    bias = *read;
  }
  std::vector<float> scratch(logits.as<float>(), logits.as<float>() + tokens * experts);
  std::vector<int32_t> got_ids(tokens * top_k);
  std::vector<float> got_weights(tokens * top_k);
  auto device = *open_device("cpu", 2);
  const Status routed = kernel_device(*device).ops().route(
      Matrix::f32(scratch.data(), tokens, experts), layer->spec.routing,
      bias.empty() ? nullptr : bias.data(), top_k, got_ids.data(), got_weights.data(), {});
  ASSERT_TRUE(routed) << routed.error().to_string();
  // Both lists are sorted by weight: the stored list, and the order of choice.
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t at = t * top_k + j;
      const int32_t* begin = ids.as<int32_t>() + t * top_k;
      const int32_t* found = std::find(begin, begin + top_k, got_ids[at]);
      ASSERT_NE(found, begin + top_k) << "token " << t << ": expert " << got_ids[at];
      const float want = weights.as<float>()[t * top_k + (found - begin)];
      EXPECT_NEAR(got_weights[at], want, 1e-5 * want) << "token " << t;
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = fs::path(info.param).filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return fs::path(info.param).parent_path().filename().string() + "_" + name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoredRouters);
INSTANTIATE_TEST_SUITE_P(Stored, StoredRouters,
                         ::testing::ValuesIn(testing::checkpoints_with("reference.safetensors")),
                         test_name);

}  // namespace
}  // namespace moracle::stored_routers_test
