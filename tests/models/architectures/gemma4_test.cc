// Gemma-4's variants: keys of published files, experts of one tensor each, settings that matter,
// and refused ones. The models are those of architectures_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::gemma4_test {
namespace {

using nlohmann::json;
using testing::all_logits;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::golden_model;
using testing::golden_reference;
using testing::GoldenReference;
using testing::kCloseInF32;
using testing::must;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

// Published files give the sizes of layers without a window by keys of their own.
TEST(Gemma4, ReadsSizesUnderPublishedKeys) {
  for (const char* name : {"gemma4", "gemma4_plain"}) {
    SCOPED_TRACE(name);
    const GoldenReference want = golden_reference(name);
    SyntheticCheckpoint published = golden_model(name);
    published.config.erase("per_layer_config");
    published.config["global_head_dim"] = 12;
    // Without attention_k_eq_v it does not count.
    published.config["num_global_key_value_heads"] = 1;
    const auto got = all_logits(published, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
}

TEST(Gemma4, LastLayerHasNoWindow) {
  const GoldenReference want = golden_reference("gemma4");
  SyntheticCheckpoint bare = golden_model("gemma4");
  bare.config.erase("layer_types");
  for (const bool named : {false, true}) {
    if (named) bare.config["layer_types"] = {"sliding_attention", "sliding_attention"};
    const auto got = all_logits(bare, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
}

// Each setting changes the result: the reference is not blind to it.
TEST(Gemma4, EverySettingMatters) {
  const GoldenReference want = golden_reference("gemma4");
  for (const auto& [pointer, value] :
       {std::pair<const char*, json>{"/final_logit_softcapping", nullptr},
        {"/final_logit_softcapping", 2.5},
        {"/sliding_window", 6},
        {"/rope_parameters/full_attention/partial_rotary_factor", 0.9},
        {"/rope_parameters/full_attention/factor", 2.0},
        {"/rope_parameters/full_attention/rope_theta", 2e4},
        {"/rope_parameters/sliding_attention/rope_theta", 2e3},
        {"/top_k_experts", 2},
        {"/rms_norm_eps", 0.05}}) {
    SCOPED_TRACE(pointer);
    SyntheticCheckpoint other = golden_model("gemma4");
    other.config[json::json_pointer(pointer)] = value;
    const auto got = all_logits(other, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_GT(relative_difference(*got, want.logits), 1e-3);
  }
}

TEST(Gemma4, EveryNumberOfTheLayerMatters) {
  const GoldenReference want = golden_reference("gemma4");
  for (const char* name :
       {"router.scale", "router.per_expert_scale", "layer_scalar",
        "pre_feedforward_layernorm_2.weight", "post_feedforward_layernorm_1.weight",
        "post_feedforward_layernorm_2.weight"}) {
    SCOPED_TRACE(name);
    SyntheticCheckpoint other = golden_model("gemma4");
    testing::TensorBytes& tensor = other.tensors.at(str("model.layers.0.", name));
    // The first number becomes 3.
    tensor.bytes[0] = std::byte{0x40}, tensor.bytes[1] = std::byte{0x40};
    const auto got = all_logits(other, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_GT(relative_difference(*got, want.logits), 1e-4);
  }
}

TEST(Gemma4, RoutingHasScalesOfExperts) {
  const Checkpoint checkpoint = must(golden_model("gemma4").open());
  const DescribedWeights experts = must(checkpoint.moe_layer(1));
  EXPECT_EQ(experts.spec.top_k, 3);
  EXPECT_EQ(experts.spec.activation.function, Activation::kGeluTanh);
  const Routing want{.renormalize = true, .expert_scales = true};
  EXPECT_EQ(experts.spec.routing, want);
  EXPECT_EQ(name(want), "softmax, renormalised, times a scale of the expert");
}

TEST(Gemma4, RefusesKeysOfItsDenseModels) {
  const auto refused = [](const json& change, const char* line) {
    SyntheticCheckpoint other = golden_model("gemma4");
    other.config.merge_patch(change);
    expect_unsupported(plan(must(other.open())), {"config.json: ", line});
  };
  refused({{"enable_moe_block", false}}, "enable_moe_block: needs true, a model with experts");
  refused({{"hidden_size_per_layer_input", 8}}, "hidden_size_per_layer_input: needs 0; it is 8");
  refused({{"hidden_size_per_layer_input", nullptr}}, "needs 0; it is 256");
  refused({{"num_kv_shared_layers", 1}}, "num_kv_shared_layers: needs 0; it is 1");
  refused({{"use_bidirectional_attention", "all"}}, "needs null or vision; it is all");
  refused({{"hidden_activation", "silu"}}, "needs gelu_pytorch_tanh; it is silu");
  refused({{"rope_parameters",
            {{"full_attention", {{"rope_type", "longrope"}, {"partial_rotary_factor", 1}}}}}},
          "proportional or yarn; it is longrope");
  refused({{"rope_parameters", {{"sliding_attention", {{"partial_rotary_factor", 0.5}}}}}},
          "sliding_attention.partial_rotary_factor: needs 1; it is 0.5");
  refused({{"per_layer_config", {{"1", {{"sliding_window", 3}}}}}},
          "per_layer_config.1.sliding_window: needs head_dim and num_key_value_heads only");
}

// transformers replaces all settings by those of the older name, and knows every kind.
TEST(Gemma4, RopeScalingReplacesRopeParameters) {
  const GoldenReference want = golden_reference("gemma4");
  SyntheticCheckpoint first = golden_model("gemma4"), second = first;
  const json settings = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 3.0}, {"rope_theta", 7e3}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e3}}}};
  first.config["rope_parameters"] = settings;
  second.config["rope_scaling"] = settings;
  const auto parameters = all_logits(first, want.ids), scaling = all_logits(second, want.ids);
  ASSERT_TRUE(parameters) << parameters.error().to_string();
  ASSERT_TRUE(scaling) << scaling.error().to_string();
  EXPECT_EQ(*parameters, *scaling);
  EXPECT_GT(relative_difference(*scaling, want.logits), 1e-3);
  second.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 3.0}};
  expect_bad(plan(must(second.open())), {"rope_scaling.sliding_attention: needs an object"});
}

TEST(Gemma4, NamesKeyOfInvalidValue) {
  const auto refused = [](const json& change, const char* line) {
    SyntheticCheckpoint other = golden_model("gemma4");
    other.config.merge_patch(change);
    expect_bad(plan(must(other.open())), {"config.json: ", line});
  };
  refused({{"final_logit_softcapping", -1}}, "final_logit_softcapping: needs a number from 0");
  refused({{"head_dim", 7}}, "head_dim: needs an even number; it is 7");
  refused({{"per_layer_config", {{"1", {{"num_key_value_heads", 3}}}}}}, "a divisor of 4 heads");
  refused({{"rope_parameters", {{"full_attention", nullptr}}}}, "full_attention: needs an object");
  refused({{"rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}}},
          "rope_theta: needs a number above 1; it is 1");
  refused({{"rope_parameters", {{"full_attention", {{"partial_rotary_factor", 0}}}}}},
          "partial_rotary_factor: needs a number above 0, at most 1; it is 0");
  refused({{"rope_parameters", {{"full_attention", {{"factor", 0}}}}}},
          "factor: needs a number above 0; it is 0");
}

}  // namespace
}  // namespace moracle::gemma4_test
