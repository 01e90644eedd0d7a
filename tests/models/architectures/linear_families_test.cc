// Tests published files of families with linear attention or with shortcut-connected experts, where
// transformers saves other keys or tensors. Each means the model that transformers computes, or is
// refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::linear_families_test {
namespace {

using nlohmann::json;
using testing::golden_model;
using testing::golden_reference;
using testing::must;
using testing::SyntheticCheckpoint;

/// The difference of the changed model from transformers' logits.
double difference(const SyntheticCheckpoint& changed, const std::string& name) {
  const testing::GoldenReference want = golden_reference(name);
  const auto got = testing::all_logits(changed, want.ids);
  EXPECT_TRUE(got) << got.error().to_string();
  return got ? testing::relative_difference(*got, want.logits) : INFINITY;
}
Result<ModelPlan> plan_of(const SyntheticCheckpoint& model) {
  MORACLE_TRY(const Checkpoint opened, model.open());
  return plan(opened);
}
/// The number of tensors that `inspect` shows as this part.
int64_t tensors_of(const SyntheticCheckpoint& model, const std::string& what) {
  for (const auto& part : must(outline(must(model.open()))).parts)
    if (part.what == what) return part.num_tensors;
  return 0;
}
struct Change {
  const char* model;
  json change;
  const char* line;
};

TEST(LinearFamilies, ValueThatTransformersIgnoresIsRefusedByName) {
  const Change cases[] = {
      {"longcat_flash", {{"mla_scale_q_lora", false}}, "mla_scale_q_lora: needs true; it is false"},
      {"longcat_flash", {{"mla_scale_kv_lora", false}}, "mla_scale_kv_lora: needs true"},
      {"longcat_flash", {{"router_bias", true}}, "router_bias: needs false; it is true"},
      {"longcat_flash", {{"norm_topk_prob", true}}, "norm_topk_prob: needs false; it is true"},
      {"longcat_flash", {{"attention_method", "MHA"}}, "attention_method: needs MLA; it is MHA"},
      {"longcat_flash", {{"zero_expert_type", "copy"}}, "zero_expert_type: needs identity"},
      {"kimi_linear", {{"mla_use_nope", false}}, "mla_use_nope: needs true; it is false"},
      {"kimi_linear", {{"moe_layer_freq", 2}}, "moe_layer_freq: needs 1; it is 2"},
      {"kimi_linear", {{"moe_router_activation_func", "softmax"}}, "needs sigmoid; it is softmax"},
      {"kimi_linear", {{"hidden_act", "gelu"}}, "hidden_act: needs silu, for Kimi Delta Attention"},
      {"kimi_linear",
       {{"layer_types", {"linear_attention", "sliding_attention", "full_attention"}}},
       "layer_types: needs linear_attention and full_attention; it has sliding_attention"},
      {"bailing_hybrid", {{"rope_interleave", false}}, "rope_interleave: needs true; it is false"},
      {"bailing_hybrid", {{"score_function", "softmax"}}, "score_function: needs sigmoid"},
      {"bailing_hybrid", {{"use_qkv_bias", true}}, "use_qkv_bias: needs false; it is true"},
      {"bailing_hybrid", {{"no_kda_lora", false}}, "no_kda_lora: needs true; it is false"},
      {"bailing_hybrid", {{"use_mla_nope", true}}, "use_mla_nope: needs false; it is true"},
      {"bailing_hybrid",
       {{"gated_attention_proj_granularity_type", "element_wise"}},
       "gated_attention_proj_granularity_type: needs head_wise; it is element_wise"},
      {"minimax", {{"postnorm", false}}, "postnorm: needs true; it is false"},
      {"minimax", {{"hidden_act", "gelu"}}, "hidden_act: needs silu, for lightning attention"},
      {"minimax", {{"shared_intermediate_size", 8}}, "shared_intermediate_size: needs 0; it is 8"},
  };
  for (const Change& change : cases) {
    SCOPED_TRACE(str(change.model, ": ", change.change.dump()));
    SyntheticCheckpoint other = golden_model(change.model);
    other.config.update(change.change);
    testing::expect_unsupported(plan_of(other), {"/config.json: ", change.line});
  }
}

TEST(LinearFamilies, InvalidValueIsNamed) {
  const Change cases[] = {
      {"longcat_flash", {{"head_dim", 6}}, "head_dim: needs 4, as the other sizes of heads say"},
      {"longcat_flash", {{"qk_head_dim", 12}}, "qk_head_dim: needs 10, as the other sizes"},
      {"longcat_flash", {{"q_lora_rank", nullptr}}, "q_lora_rank: needs a number"},
      {"kimi_linear", {{"layer_types", {"linear_attention"}}}, "needs one for each of 3 layers"},
      {"kimi_linear", {{"first_k_dense_replace", 2}}, "the dense layers of mlp_layer_types"},
      {"bailing_hybrid", {{"kda_lower_bound", 0}}, "kda_lower_bound: needs a number below 0"},
      {"bailing_hybrid", {{"linear_head_dim", 0}}, "linear_head_dim"},
      {"minimax", {{"mlp_alpha_factor", 0}}, "mlp_alpha_factor"},
      {"minimax", {{"rotary_dim", 10}}, "rotary_dim: needs a whole number from 2 to 8; it is 10"},
  };
  for (const Change& change : cases) {
    SCOPED_TRACE(str(change.model, ": ", change.change.dump()));
    SyntheticCheckpoint other = golden_model(change.model);
    other.config.update(change.change);
    testing::expect_bad(plan_of(other), {"/config.json: ", change.line});
  }
}

// ---- LongCat-Flash ----

// transformers saves gates of experts that return their input; published files have none.
TEST(LongcatFlash, TensorsOfIdentityExpertsAreNotUsed) {
  SyntheticCheckpoint more = golden_model("longcat_flash");
  for (const int layer : {0, 1}) {
    for (const int expert : {6, 7, 8, 9}) {
      for (const char* const name : {"gate_proj", "up_proj"}) {
        more.add_floats(str("model.layers.", layer, ".mlp.experts.", expert, ".", name, ".weight"),
                        {8, 24});
      }
    }
  }
  EXPECT_LT(difference(more, "longcat_flash"), testing::kCloseInF32);
  EXPECT_EQ(tensors_of(more, "tensors of identity experts, not used"), 16);
  more.add_floats("model.layers.0.mlp.experts.10.up_proj.weight", {8, 24});
  testing::expect_bad(plan_of(more), {"model.layers.0.mlp.experts.10.up_proj.weight"});
}

// With only identity experts chosen, the stored experts do not matter.
TEST(LongcatFlash, IdentityExpertsReturnTheirInput) {
  SyntheticCheckpoint identity = golden_model("longcat_flash");
  std::vector<float> bias(10, 0.0f);
  for (size_t expert = 6; expert < 10; ++expert) bias[expert] = 10;
  for (const int layer : {0, 1}) {
    const std::string name = str("model.layers.", layer, ".mlp.router.e_score_correction_bias");
    identity.add(name, DType::kF32, {10}, bias);
  }
  const auto ids = golden_reference("longcat_flash").ids;
  const auto want = must(testing::all_logits(identity, ids));
  for (auto& [name, tensor] : identity.tensors)
    if (name.find("mlp.experts.") != name.npos)
      std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0});
  EXPECT_EQ(must(testing::all_logits(identity, ids)), want);
  identity.config["routed_scaling_factor"] = 0.1;
  EXPECT_NE(must(testing::all_logits(identity, ids)), want);
}

TEST(LongcatFlash, IgnoresMultiTokenPrediction) {
  SyntheticCheckpoint more = golden_model("longcat_flash");
  more.add_floats("model.mtp.layers.0.eh_proj.weight", {24, 48});
  EXPECT_LT(difference(more, "longcat_flash"), testing::kCloseInF32);
  EXPECT_EQ(tensors_of(more, "multi-token prediction, not run"), 1);
}

// ---- Kimi-Linear ----

TEST(KimiLinear, ReadsPublishedKeys) {
  SyntheticCheckpoint published = golden_model("kimi_linear");
  for (const char* key : {"layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads",
                          "linear_conv_kernel_dim", "head_dim", "qk_head_dim"})
    published.config.erase(key);
  // Heads never rotate, whatever these keys say.
  published.config.update({{"first_k_dense_replace", 1},
                           {"moe_layer_freq", 1},
                           {"mla_use_nope", true},
                           {"use_grouped_topk", true},
                           {"rope_theta", 10000.0},
                           {"rope_scaling", nullptr},
                           {"moe_router_activation_func", "sigmoid"}});
  EXPECT_LT(difference(published, "kimi_linear"), testing::kCloseInF32);
}

TEST(KimiLinear, ListsOfLayersCountFromOne) {
  SyntheticCheckpoint listed = golden_model("kimi_linear");
  listed.config.erase("layer_types");
  json& lists = listed.config["linear_attn_config"];
  EXPECT_LT(difference(listed, "kimi_linear"), testing::kCloseInF32);
  lists["kda_layers"] = {1, 2, 3};
  testing::expect_bad(plan_of(listed), {"kda_layers", "layer 2 is in both"});
  lists["kda_layers"] = {1};
  testing::expect_bad(plan_of(listed), {"kda_layers", "layer 3 is in none"});
}

// transformers saves dense layers under the name of the experts.
TEST(KimiLinear, ReadsPublishedNamesOfDenseLayers) {
  SyntheticCheckpoint published = golden_model("kimi_linear");
  for (const char* const name : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string end = str(name, ".weight");
    published.rename("model.layers.0.block_sparse_moe." + end, "model.layers.0.mlp." + end);
  }
  EXPECT_LT(difference(published, "kimi_linear"), testing::kCloseInF32);
}

// ---- Ling ----

// transformers overwrites head_dim with the columns of RoPE when it saves a file.
TEST(BailingHybrid, SizeOfHeadsSurvivesTheClassOfTransformers) {
  SyntheticCheckpoint saved = golden_model("bailing_hybrid");
  saved.config.update({{"head_dim", 128}, {"linear_head_dim", 4}});
  EXPECT_LT(difference(saved, "bailing_hybrid"), testing::kCloseInF32);
}

TEST(BailingHybrid, ReadsPublishedKeysAndArchitecture) {
  SyntheticCheckpoint published = golden_model("bailing_hybrid");
  published.config.update({{"architectures", {"BailingMoeV3ForCausalLM"}},
                           {"no_kda_lora", true},
                           {"use_mla_nope", false},
                           {"gated_attention_proj_granularity_type", "head_wise"}});
  EXPECT_LT(difference(published, "bailing_hybrid"), testing::kCloseInF32);
}

TEST(BailingHybrid, ReadsEitherNameOfTheOutput) {
  SyntheticCheckpoint renamed = golden_model("bailing_hybrid");
  for (const int layer : {0, 1, 2}) {
    const std::string prefix = str("model.layers.", layer, ".attention.");
    renamed.rename(prefix + "dense.weight", prefix + "o_proj.weight");
  }
  EXPECT_LT(difference(renamed, "bailing_hybrid"), testing::kCloseInF32);
}

TEST(BailingHybrid, IgnoresMultiTokenPredictionLayers) {
  SyntheticCheckpoint more = golden_model("bailing_hybrid");
  more.add_floats("model.layers.3.eh_proj.weight", {24, 48});
  more.config["num_nextn_predict_layers"] = 1;
  EXPECT_LT(difference(more, "bailing_hybrid"), testing::kCloseInF32);
}

// ---- MiniMax ----

TEST(MiniMax, ReadsPublishedKeysAndArchitectures) {
  for (const char* const architecture : {"MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"}) {
    SyntheticCheckpoint published = golden_model("minimax");
    json& config = published.config;
    config["architectures"] = {architecture};
    for (const auto& [from, to] : {std::pair{"full_attn", "full_attention"},
                                   {"linear_attn", "linear_attention"},
                                   {"mlp", "mlp"}}) {
      for (const char* const which : {"alpha", "beta"}) {
        const std::string key = str(from, "_", which, "_factor");
        config[str("layernorm_", to, "_", which)] = config.at(key);
        config.erase(key);
      }
    }
    config.erase("layer_types");
    config.update({{"attn_type_list", {0, 1, 0}}, {"postnorm", true}, {"rotary_dim", 8}});
    EXPECT_LT(difference(published, "minimax"), testing::kCloseInF32);
    config["attn_type_list"] = {0, 2, 0};
    testing::expect_unsupported(plan_of(published), {"attn_type_list: needs 0 and 1; it has 2"});
  }
}

/// Models whose logits change much with rounding: transformers' own f32 is up to 4e-6 away from its
/// f64.
constexpr double kCloseIfSensitive = 1e-5;
double sensitive_difference(const SyntheticCheckpoint& model, const std::string& name) {
  const testing::GoldenReference want =
      testing::reference_in(testing::golden_dir() + "/sensitive/" + name);
  return testing::relative_difference(must(testing::all_logits(model, want.ids)), want.logits);
}
SyntheticCheckpoint sensitive_model(const std::string& name) {
  return testing::model_in(testing::golden_dir() + "/sensitive/" + name);
}

// transformers rotates whole heads, so only the golden model of the publisher's rotation tells.
TEST(MiniMax, RotaryDimCountsAsInThePublishersCode) {
  SyntheticCheckpoint whole = sensitive_model("minimax_rotary_dim");
  EXPECT_LT(sensitive_difference(whole, "minimax_rotary_dim"), kCloseIfSensitive);
  whole.config.erase("rotary_dim");
  EXPECT_GT(sensitive_difference(whole, "minimax_rotary_dim"), 1e-3);
}

TEST(MiniMax, WindowAppliesToLayersWithKeys) {
  SyntheticCheckpoint windowed = sensitive_model("minimax_window");
  EXPECT_LT(sensitive_difference(windowed, "minimax_window"), kCloseIfSensitive);
  // Without the list, layers alternate from full attention on.
  windowed.config.erase("layer_types");
  EXPECT_LT(sensitive_difference(windowed, "minimax_window"), kCloseIfSensitive);
  windowed.config["sliding_window"] = nullptr;
  EXPECT_GT(sensitive_difference(windowed, "minimax_window"), 1e-3);
}

TEST(MiniMax, StoredTablesOfDecaysMustBeThoseOfTheConfig) {
  SyntheticCheckpoint saved = golden_model("minimax");
  const auto slope = [](int head, double depth) {
    return static_cast<float>(std::exp2(-2.0 * head) * depth);
  };
  for (const int layer : {0, 2}) {
    const double depth = 1 - layer / (2 + 1e-5) + 1e-5;
    const std::string prefix = str("model.layers.", layer, ".self_attn.");
    saved.add(
        prefix + "slope_rate", DType::kF32, {4, 1, 1},
        std::vector<float>{slope(1, depth), slope(2, depth), slope(3, depth), slope(4, depth)});
    saved.add_floats(prefix + "query_decay", {4, 8, 1});
    saved.add_floats(prefix + "key_decay", {4, 8, 1});
    saved.add_floats(prefix + "diagonal_decay", {1, 4, 8, 8});
  }
  EXPECT_LT(difference(saved, "minimax"), testing::kCloseInF32);
  EXPECT_EQ(tensors_of(saved, "tables of decays, which config.json determines"), 6);
  saved.add("model.layers.0.self_attn.slope_rate", DType::kF32, {4, 1, 1},
            std::vector<float>{0.25f, 0.0625f, 0.02f, 0.0039f});
  testing::expect_bad(plan_of(saved), {"slope_rate", "for head 2"});
}

}  // namespace
}  // namespace moracle::linear_families_test
