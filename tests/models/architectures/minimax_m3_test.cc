// MiniMax-M3 in the files of its publisher, whose keys and names differ from those that
// transformers saves. sparse_attention_test.cc tests its selections of blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::minimax_m3_test {
namespace {

using nlohmann::json;
using testing::all_logits;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::golden_model;
using testing::golden_reference;
using testing::GoldenReference;
using testing::must;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

const char* const kWrapped = "../multimodal/minimax_m3";

// The language model, with the publisher's keys.
json published_config(const json& saved) {
  json config = {{"architectures", {"MiniMaxM3ForCausalLM"}},
                 {"attention_output_gate", false},
                 {"first_k_dense_replace", 1},
                 {"hidden_act", "swigluoai"},
                 {"model_type", "minimax_m3"},
                 {"moe_intermediate_size", saved.at("intermediate_size")},
                 {"moe_layer_freq", {0, 1, 1}},
                 {"n_shared_experts", 1},
                 {"num_mtp_modules", 7},
                 {"num_nextn_predict_layers", 1},
                 {"partial_rotary_factor", 0.5},
                 {"qk_norm_type", "per_head"},
                 {"rope_theta", saved.at("rope_parameters").at("rope_theta")},
                 {"scoring_func", "sigmoid"},
                 {"use_gemma_norm", true},
                 {"use_qk_norm", true},
                 {"use_routing_bias", true}};
  for (const char* key :
       {"dense_intermediate_size", "head_dim", "hidden_size", "intermediate_size",
        "max_position_embeddings", "num_attention_heads", "num_experts_per_tok",
        "num_hidden_layers", "num_key_value_heads", "num_local_experts", "rms_norm_eps",
        "rotary_dim", "routed_scaling_factor", "shared_intermediate_size", "swiglu_alpha",
        "swiglu_limit", "tie_word_embeddings", "vocab_size"})
    config[key] = saved.at(key);
  config["sparse_attention_config"] = {{"sparse_attention_freq", {0, 1, 1}},
                                       {"sparse_block_size", saved.at("index_block_size")},
                                       {"sparse_disable_index_value", {0, 1, 1}},
                                       {"sparse_index_dim", saved.at("index_head_dim")},
                                       {"sparse_init_block", 0},
                                       {"sparse_local_block", saved.at("index_local_blocks")},
                                       {"sparse_num_index_heads", saved.at("index_n_heads")},
                                       {"sparse_score_type", "max"},
                                       {"sparse_topk_blocks", saved.at("index_topk_blocks")},
                                       {"use_sparse_attention", true}};
  return config;
}

// The publisher's text model: config.json without a wrapper, tensors without a vision part.
SyntheticCheckpoint published() {
  const SyntheticCheckpoint saved = golden_model(kWrapped);
  SyntheticCheckpoint text = saved;
  text.tensors.clear();
  constexpr std::string_view kPrefix = "language_model.";
  for (const auto& [name, tensor] : saved.tensors) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string own = name.substr(kPrefix.size());
    text.tensors[own] = tensor;
    text.tensors[own].name = own;
  }
  text.config = published_config(saved.config.at("text_config"));
  return text;
}

double difference(const SyntheticCheckpoint& checkpoint) {
  const GoldenReference want = golden_reference(kWrapped);
  const auto got = all_logits(checkpoint, want.ids);
  EXPECT_TRUE(got) << got.error().to_string();
  return got ? relative_difference(*got, want.logits) : 1;
}
Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  return plan(opened, {.device = testing::device("cpu")});
}

TEST(MiniMaxM3, ReadsPublishedKeysAndNames) {
  EXPECT_LT(difference(published()), testing::kCloseInF32);
  // The publisher's multimodal file wraps the same keys.
  SyntheticCheckpoint wrapped = golden_model(kWrapped);
  wrapped.config["text_config"] = published().config;
  EXPECT_LT(difference(wrapped), testing::kCloseInF32);
}

TEST(MiniMaxM3, MatchesWholePromptWhenRunInSteps) {
  const GoldenReference want = golden_reference(kWrapped);
  const auto count = static_cast<int64_t>(want.ids.size());
  const Checkpoint checkpoint = must(published().open());
  ModelOptions options{.device = testing::device("cpu"), .max_num_tokens = 4};
  Model model = must(Model::load(checkpoint, options));
  for (const int64_t chunk : {1, 4}) {
    KvCache cache = must(model.make_cache(count));
    std::vector<float> all;
    for (int64_t at = 0; at < count; at += chunk) {
      const int64_t rows = std::min(chunk, count - at);
      const Model::Step step{std::span(want.ids).subspan(at, rows), &cache};
      ASSERT_TRUE(model.forward({&step, 1}));
      const auto logits = must(model.logits(0, rows));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    EXPECT_LT(relative_difference(all, want.logits), 4 * testing::kCloseInF32) << chunk;
  }
}

TEST(MiniMaxM3, RoutesAsTransformersDoes) {
  const Checkpoint opened = must(published().open());
  const LayerSpec experts = must(opened.moe_layer(1)).spec;
  EXPECT_EQ(experts.routing.score, Score::kSigmoid);
  EXPECT_TRUE(experts.routing.renormalize);
  EXPECT_TRUE(experts.routing.correction_bias);
  EXPECT_EQ(experts.routing.scaling_factor, 2.0f);
  EXPECT_EQ(experts.activation.function, Activation::kSwigluOai);
  EXPECT_EQ(experts.activation.limit, 0.9f);
  EXPECT_EQ(experts.activation.alpha, 1.702f);
}

TEST(MiniMaxM3, IgnoresMultiTokenPredictionLayers) {
  for (const char* name : {"model.layers.3.eh_proj.weight", "model.mtp.layers.0.fc.weight"}) {
    SyntheticCheckpoint more = published();
    more.add_floats(name, {24, 48});
    EXPECT_LT(difference(more), testing::kCloseInF32) << name;
    const Outline what = must(outline(must(more.open())));
    EXPECT_TRUE(std::any_of(what.parts.begin(), what.parts.end(), [](const auto& part) {
      return part.what == "multi-token prediction, not run" && part.num_tensors == 1;
    })) << name;
  }
}

// The function of all MLPs is clamped: another limit changes each of the dense layer, the shared
// experts and the routed ones.
TEST(MiniMaxM3, LimitClampsEveryMlp) {
  SyntheticCheckpoint wide = published();
  wide.config["swiglu_limit"] = 100.0;
  EXPECT_GT(difference(wide), 1e-3);
}

TEST(MiniMaxM3, RejectsSettingsByName) {
  struct Case {
    const char* place;  // "", or the object that holds the key
    const char* key;
    json value;
    const char* line;
    bool unsupported = true;
  };
  const Case cases[] = {
      {"", "attention_output_gate", true, "attention_output_gate: needs false"},
      {"", "hidden_act", "gelu", "hidden_act: needs swigluoai; it is gelu"},
      {"", "first_k_dense_replace", 2, "first_k_dense_replace: needs the dense layers", false},
      {"", "moe_intermediate_size", 4, "moe_intermediate_size: needs 8, which is"},
      {"", "moe_layer_freq", {0, 1}, "moe_layer_freq: needs one number for each of 3", false},
      {"", "n_shared_experts", 2, "n_shared_experts: needs 1; there are 2"},
      {"", "qk_norm_type", "per_layer", "qk_norm_type: needs per_head; it is per_layer"},
      {"", "scoring_func", "softmax", "scoring_func: needs sigmoid; it is softmax"},
      {"", "swiglu_limit", 0, "swiglu_limit: needs a number above 0; it is 0", false},
      {"", "use_gemma_norm", false, "use_gemma_norm: needs true; it is false"},
      {"", "use_qk_norm", false, "use_qk_norm: needs true; it is false"},
      {"", "use_routing_bias", false, "use_routing_bias: needs true; it is false"},
      {"sparse_attention_config", "use_sparse_attention", false,
       "use_sparse_attention: needs true"},
      {"sparse_attention_config", "sparse_score_type", "mean",
       "sparse_score_type: needs max; it is mean"},
      {"sparse_attention_config", "sparse_init_block", 1, "sparse_init_block: needs 0; it is 1"},
      {"sparse_attention_config",
       "sparse_disable_index_value",
       {0, 1, 0},
       "sparse_disable_index_value: needs 1 where blocks are selected; it is 0 for layer 2"},
      {"sparse_attention_config", "sparse_local_block", 4,
       "sparse_local_block: needs at most the 3 blocks that a token sees; it is 4"},
      {"sparse_attention_config", "sparse_num_index_heads", 4,
       "sparse_num_index_heads: needs a divisor of 2 heads of keys; it is 4"},
      {"sparse_attention_config", "sparse_index_dim", 2,
       "sparse_index_dim: needs at least the 4 rotated columns; it is 2"},
      {"sparse_attention_config",
       "sparse_attention_freq",
       {0, 1},
       "sparse_attention_freq: needs one number for each of 3 layers; it has 2",
       false},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.key);
    SyntheticCheckpoint other = published();
    const std::string place = one.place;
    (place.empty() ? other.config : other.config[place])[one.key] = one.value;
    if (one.unsupported)
      expect_unsupported(plan_of(other), {"/config.json: ", one.line});
    else
      expect_bad(plan_of(other), {"/config.json: ", one.line});
  }
}

}  // namespace
}  // namespace moracle::minimax_m3_test
