// Tests files as their publishers write them where transformers saves other keys or tensors.
// Each means the model that transformers computes, or is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::published_keys_test {
namespace {

using nlohmann::json;
using testing::golden_model;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::must;
using testing::SyntheticCheckpoint;

// The difference of the changed model from transformers' logits.
double difference(const SyntheticCheckpoint& changed, const std::string& name) {
  const testing::GoldenReference want = golden_reference(name);
  const auto got = testing::all_logits(changed, want.ids);
  EXPECT_TRUE(got) << got.error().to_string();
  return got ? testing::relative_difference(*got, want.logits) : INFINITY;
}
std::vector<float> logits(const SyntheticCheckpoint& model, const std::string& name) {
  return must(testing::all_logits(model, golden_reference(name).ids));
}
Result<ModelPlan> plan_of(const SyntheticCheckpoint& model) {
  MORACLE_TRY(const Checkpoint opened, model.open());
  return plan(opened);
}
void rename_key(json& config, const char* from, const char* to) {
  config[to] = config.at(from);
  config.erase(from);
}

// Each of these keys is in published files, and transformers does not read it.
TEST(PublishedKeys, ValueThatTransformersIgnoresIsRefusedByName) {
  struct Change {
    const char* model;
    json change;
    const char* line;
  };
  const Change cases[] = {
      {"hy_v3", {{"qk_norm", false}}, "qk_norm: needs true; it is false"},
      {"hy_v3", {{"route_norm", false}}, "route_norm: needs true; it is false"},
      {"hy_v3", {{"moe_router_use_sigmoid", false}}, "use_sigmoid: needs true; it is false"},
      {"hy_v3", {{"moe_router_enable_expert_bias", false}}, "bias: needs true; it is false"},
      {"hy_v3", {{"mlp_bias", true}}, "mlp_bias: needs false; it is true"},
      {"axk1", {{"topk_method", "greedy"}}, "topk_method: needs noaux_tc; it is greedy"},
      {"axk1", {{"scoring_func", "softmax"}}, "scoring_func: needs sigmoid; it is softmax"},
      {"sarvam_moe", {{"score_function", "softmax"}}, "score_function: needs sigmoid"},
      {"sarvam_mla", {{"scoring_func", "softmax"}}, "scoring_func: needs sigmoid; it is softmax"},
      {"mimo_v2_flash", {{"layernorm_epsilon", 1e-6}}, "layernorm_epsilon: needs 1e-05, which"},
      {"mimo_v2_flash",
       {{"hybrid_layer_pattern", {0, 0, 1}}},
       "hybrid_layer_pattern: needs 1, which transformers uses; it is 0 for layer 1"},
      {"mimo_v2_flash", {{"moe_layer_freq", {0, 1, 0}}}, "moe_layer_freq: needs 1, which"},
      {"mimo_v2_flash", {{"swa_rope_theta", 2000}}, "swa_rope_theta: needs 1000, which"},
      {"mimo_v2_flash", {{"rope_theta", 2000}}, "rope_theta: needs 10000, which"},
      {"mimo_v2_flash", {{"partial_rotary_factor", 0.25}}, "rotary_factor: needs 0.5, which"},
      {"mimo_v2_flash", {{"swa_num_key_value_heads", 4}}, "swa_num_key_value_heads: needs 2"},
      {"mimo_v2_flash", {{"swa_v_head_dim", 8}}, "swa_v_head_dim: needs 6, which"},
      {"mimo_v2_flash", {{"add_full_attention_sink_bias", true}}, "needs false; it is true"},
      {"mimo_v2_flash", {{"topk_method", "greedy"}}, "topk_method: needs noaux_tc"},
      {"laguna", {{"gating", false}}, "gating: needs true, per-head or per-element"},
      {"laguna", {{"attention_bias", true}}, "attention_bias: needs false; it is true"},
      {"laguna", {{"moe_router_logit_softcapping", 30.0}}, "softcapping: needs 0; it is 30"},
      {"laguna", {{"moe_apply_router_weight_on_input", true}}, "needs false; it is true"},
      {"laguna", {{"norm_topk_prob", false}}, "norm_topk_prob: needs true; it is false"},
      {"laguna", {{"mlp_only_layers", {0, 2}}}, "the dense layers of mlp_layer_types; it has 2"},
      {"flex_olmo", {{"clip_qkv", 8.0}}, "clip_qkv: needs null; it is set"},
      {"mistral4", {{"model_type", "mistral"}}, "model_type: needs mistral4; it is mistral"},
      {"cohere2_moe",
       {{"shared_expert_combination_strategy", "max"}},
       "strategy: needs average or sum; it is max"},
      {"cohere2_moe", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, "needs null, which"},
      {"cohere2_moe", {{"expert_selection_fn", "tanh"}}, "sqrtsoftplus; it is tanh"},
  };
  for (const Change& change : cases) {
    SCOPED_TRACE(str(change.model, ": ", change.change.dump()));
    SyntheticCheckpoint other = golden_model(change.model);
    other.config.update(change.change);
    testing::expect_unsupported(plan_of(other), {"/config.json: ", change.line});
  }
}

TEST(PublishedKeys, InvalidValueIsNamed) {
  struct Change {
    const char* model;
    json change;
    const char* line;
  };
  const Change cases[] = {
      {"hy_v3", {{"first_k_dense_replace", 2}}, "needs the dense layers of mlp_layer_types"},
      {"hy_v3", {{"router_scaling_factor", nullptr}}, "router_scaling_factor: needs a number"},
      {"granite_moe_swa", {{"layer_rope_theta", {1e4}}}, "a number for each of 3 layers"},
      {"granite_moe_swa", {{"sliding_window", nullptr}}, "sliding_window: needs a whole number"},
      {"mellum", {{"rope_parameters", {{"full_attention", json::object()}}}}, "rope_theta"},
      {"mimo_v2_flash", {{"v_head_dim", 0}}, "v_head_dim: needs a whole number from 1"},
      {"mimo_v2_flash", {{"num_key_value_heads", 4}}, "half of a divisor of 4 heads; it is 4"},
      {"laguna", {{"num_attention_heads_per_layer", {4, 2}}}, "one for each of 3 layers"},
      {"laguna", {{"num_attention_heads_per_layer", {4, 3, 4}}}, "it is 3 for layer 1"},
      {"cohere2_moe", {{"logit_scale", 0}}, "logit_scale: needs a number above 0; it is 0"},
      {"mistral4", {{"qk_rope_head_dim", 6}}, "a partial_rotary_factor of qk_rope_head_dim, 6"},
  };
  for (const Change& change : cases) {
    SCOPED_TRACE(str(change.model, ": ", change.change.dump()));
    SyntheticCheckpoint other = golden_model(change.model);
    other.config.update(change.change);
    testing::expect_bad(plan_of(other), {"/config.json: ", change.line});
  }
}

TEST(Axk1, FileWithoutCorrectionBiasRanksGroupsByTwoBestExperts) {
  SyntheticCheckpoint zero = golden_model("axk1"), none = zero;
  for (const char* layer : {"1", "2"}) {
    const std::string bias = str("model.layers.", layer, ".mlp.gate.e_score_correction_bias");
    zero.add(bias, DType::kF32, {8}, std::vector<float>(8));
    none.remove(bias);
  }
  EXPECT_EQ(logits(none, "axk1"), logits(zero, "axk1"));
}

// Published files have the norm in every layer; a dense one does not use it.
TEST(Axk1, NormOfDenseLayerIsListedAsNotUsed) {
  SyntheticCheckpoint more = golden_model("axk1");
  more.add_floats("model.layers.0.post_mlp_layernorm.weight", {24});
  EXPECT_LT(difference(more, "axk1"), testing::kCloseInF32);
  const auto what = must(outline(must(more.open())));
  EXPECT_TRUE(std::any_of(what.parts.begin(), what.parts.end(), [](const auto& part) {
    return part.what == "norms of dense layers, not used" && part.num_tensors == 1;
  }));
}

TEST(Axk1, OlderKeysNameDenseLayers) {
  SyntheticCheckpoint older = golden_model("axk1");
  older.config.erase("mlp_layer_types");
  older.config.update({{"first_k_dense_replace", 1}, {"moe_layer_freq", 1}});
  EXPECT_LT(difference(older, "axk1"), testing::kCloseInF32);
}

TEST(Sarvam, ReadsPublishedArchitectureAndKeys) {
  SyntheticCheckpoint moe = golden_model("sarvam_moe_biased");
  moe.config["architectures"] = {"SarvamMoEForCausalLM"};
  rename_key(moe.config, "n_routed_experts", "num_experts");
  rename_key(moe.config, "n_shared_experts", "num_shared_experts");
  rename_key(moe.config, "attention_bias", "use_qkv_bias");
  EXPECT_LT(difference(moe, "sarvam_moe_biased"), testing::kCloseInF32);
  SyntheticCheckpoint mla = golden_model("sarvam_mla");
  mla.config["architectures"] = {"SarvamMLAForCausalLM"};
  rename_key(mla.config, "rope_parameters", "rope_scaling");
  mla.config["rope_scaling"].erase("rope_type");
  mla.config["rope_scaling"]["type"] = "deepseek_yarn";
  mla.config["head_dim"] = 16;
  EXPECT_LT(difference(mla, "sarvam_mla"), testing::kCloseInF32);
}

// The same class computes other models, which model_type tells apart.
TEST(Sarvam, ModelTypeDecidesBesideClassOfTransformers) {
  SyntheticCheckpoint other = golden_model("sarvam_mla");
  EXPECT_EQ(must(other.open()).architecture(), "SarvamMLAForCausalLM");
  other.config["model_type"] = "deepseek_v3";
  EXPECT_EQ(must(other.open()).architecture(), "DeepseekV3ForCausalLM");
}

TEST(MimoV2Flash, ReadsPublishedKeysThatAgree) {
  SyntheticCheckpoint published = golden_model("mimo_v2_flash");
  published.config.update({{"layernorm_epsilon", 1e-5},
                           {"hybrid_layer_pattern", {0, 1, 1}},
                           {"moe_layer_freq", {0, 1, 1}},
                           {"rope_theta", 10000},
                           {"swa_rope_theta", 1000},
                           {"partial_rotary_factor", 0.5},
                           {"swa_num_attention_heads", 4},
                           {"swa_num_key_value_heads", 2},
                           {"swa_head_dim", 8},
                           {"swa_v_head_dim", 6},
                           {"add_swa_attention_sink_bias", true},
                           {"add_full_attention_sink_bias", false},
                           {"n_shared_experts", nullptr},
                           {"routed_scaling_factor", nullptr},
                           {"scoring_func", "sigmoid"},
                           {"topk_method", "noaux_tc"},
                           {"sliding_window", 4},
                           {"sliding_window_size", 4}});
  EXPECT_LT(difference(published, "mimo_v2_flash"), testing::kCloseInF32);
  // Without the second key, the first one is the window itself.
  published.config.erase("sliding_window_size");
  EXPECT_GT(difference(published, "mimo_v2_flash"), 1e-3);
}

TEST(MimoV2Flash, FactorOfValuesChangesResult) {
  SyntheticCheckpoint other = golden_model("mimo_v2_flash");
  other.config["attention_value_scale"] = nullptr;
  EXPECT_GT(difference(other, "mimo_v2_flash"), 1e-3);
}

TEST(GraniteMoeSwa, EveryLayerHasItsOwnRotaryBase) {
  SyntheticCheckpoint same = golden_model("granite_moe_swa");
  for (const json& bases : {json{1e4, 1e4, 1e3}, json{1e4, 0, 1e4}, json{0, 0, 1e3}}) {
    same.config["layer_rope_theta"] = bases;
    EXPECT_GT(difference(same, "granite_moe_swa"), 1e-3) << bases.dump();
  }
}

// Such a config has no lists of layers.
TEST(Cohere2Moe, DenseFirstLayersFollowFromTheirNumber) {
  SyntheticCheckpoint counted = golden_model("cohere2_moe");
  counted.config.erase("layer_types");
  counted.config.erase("mlp_layer_types");
  counted.config["first_k_dense_replace"] = 1;
  EXPECT_LT(difference(counted, "cohere2_moe"), testing::kCloseInF32);
  counted.config["sliding_window_pattern"] = 1;
  EXPECT_GT(difference(counted, "cohere2_moe"), 1e-3);
}

TEST(Cohere2Moe, EpsilonOfRmsNormReplacesLayerNorm) {
  SyntheticCheckpoint other = golden_model("cohere2_moe");
  other.config["rms_norm_eps"] = 1e-5;
  EXPECT_GT(difference(other, "cohere2_moe"), 1e-3);
}

TEST(Mistral4, QueriesGrowBeyondOriginalContext) {
  SyntheticCheckpoint other = golden_model("mistral4_long");
  json& rope = other.config["rope_parameters"];
  rope["llama_4_scaling_beta"] = 0.0;
  const double without = difference(other, "mistral4_long");
  EXPECT_GT(without, 1e-3);
  rope.erase("llama_4_scaling_beta");
  EXPECT_EQ(difference(other, "mistral4_long"), without);
  rope["llama_4_scaling_beta"] = -0.1;
  const auto refused = plan(must(other.open()));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("llama_4_scaling_beta: needs a number from 0 to 1000; it is -0.1"));
}

// ---- Step-3.7, whose files wrap the language model for images ----

SyntheticCheckpoint step() {
  return golden_model("../multimodal/step3p7");
}

// Files with the language model's keys at the outermost level, which transformers ignores.
TEST(Step3p7, ReadsFlatConfig) {
  SyntheticCheckpoint flat = step();
  flat.config = flat.config.at("text_config");
  flat.config["architectures"] = {"Step3p7FlashForCausalLM"};
  rename_key(flat.config, "n_routed_experts", "num_experts");
  flat.config.update({{"scoring_func", "sigmoid"}, {"use_moe_router_bias", true}});
  EXPECT_LT(difference(flat, "../multimodal/step3p7"), testing::kCloseInF32);
}

// Lists with entries for layers of multi-token prediction, and RoPE by layer.
TEST(Step3p7, ReadsOlderKeys) {
  SyntheticCheckpoint older = step();
  json& config = older.config["text_config"];
  for (const char* key : {"layer_types", "swiglu_limits", "swiglu_limits_shared"})
    config[key].push_back(config[key][1]);
  config["num_nextn_predict_layers"] = 1;
  config.erase("mlp_layer_types");
  config["moe_layers_enum"] = "1,2,3,4";
  config.erase("per_layer_config");
  config.erase("num_sliding_attention_heads");
  config["attention_other_setting"] = {{"num_attention_heads", 6}};
  config["rope_scaling"] = config["rope_parameters"]["full_attention"];
  config.erase("rope_parameters");
  config["rope_theta"] = {1e4, 1e3, 1e3, 1e4, 1e3};
  config["partial_rotary_factors"] = {0.5, 1.0, 1.0, 0.5, 1.0};
  EXPECT_LT(difference(older, "../multimodal/step3p7"), testing::kCloseInF32);
  config["moe_layers_enum"] = {1, 2, 3};
  EXPECT_LT(difference(older, "../multimodal/step3p7"), testing::kCloseInF32);
}

TEST(Step3p7, EverySettingMatters) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"swiglu_limits", nullptr},
                                   {"swiglu_limits_shared", {0, 0, 0, 0.6}},
                                   {"sliding_window", 6},
                                   {"moe_router_scaling_factor", 1.0},
                                   {"query_pre_attn_scalar", 16}}) {
    SCOPED_TRACE(key);
    SyntheticCheckpoint other = step();
    other.config["text_config"][key] = value;
    EXPECT_GT(difference(other, "../multimodal/step3p7"), 1e-3);
  }
}

TEST(Step3p7, NamesBadValues) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"swiglu_limits", {0.0, -1.0}},
                                   {"swiglu_limits_shared", {0.0}},
                                   {"moe_layers_enum", "1,x"},
                                   {"partial_rotary_factors", {0.5}},
                                   {"layer_types", {"full_attention"}},
                                   {"use_moe_router_bias", false},
                                   {"use_head_wise_attn_gate", false},
                                   {"num_sliding_attention_heads", 5}}) {
    SCOPED_TRACE(key);
    SyntheticCheckpoint other = step();
    json& config = other.config["text_config"];
    if (key == std::string_view("moe_layers_enum")) config.erase("mlp_layer_types");
    config.erase("per_layer_config");
    config.erase("rope_parameters");
    config[key] = value;
    const auto planned = plan_of(other);
    ASSERT_FALSE(planned);
    EXPECT_THAT(planned.error().to_string(), HasSubstr(key));
  }
}

}  // namespace
}  // namespace moracle::published_keys_test
