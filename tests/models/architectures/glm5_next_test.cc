// GLM-5.3-Flash: names and keys of its files, and the memory of pooled index keys.
// architectures_test.cc compares the same models with transformers, beyond the top-k;
// compressed_attention_test.cc runs them in chunks and in long contexts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/median.h"
#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::glm5_next_test {
namespace {

using nlohmann::json;
using testing::all_logits;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::golden_model;
using testing::golden_reference;
using testing::GoldenReference;
using ::testing::HasSubstr;
using testing::kCloseInF32;
using testing::must;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

const std::string kRoot = "model.language_model.";
const char* const kModels[] = {"glm5_next_pools", "glm5_next_shared"};

Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint,
                          std::optional<DType> kv_cache = {}) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  ModelOptions options;
  options.device = testing::device("cpu");
  options.kv_cache = kv_cache;
  return plan(opened, options);
}

void expect_logits(const SyntheticCheckpoint& checkpoint, const char* of) {
  const GoldenReference want = golden_reference(of);
  const auto got = all_logits(checkpoint, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

// The names of transformers' class, which its files have only on request.
SyntheticCheckpoint in_names_of_class(const char* model) {
  SyntheticCheckpoint other = golden_model(model);
  for (const auto& [name, tensor] : std::map(other.tensors)) {
    std::string renamed = name;
    for (const auto& [from, to] :
         {std::pair{".self_attn.f_", ".self_attn.forget_gate.f_"},
          std::pair{".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
          std::pair{".self_attn.A_log", ".self_attn.forget_gate.A_log"},
          std::pair{".hc_attn_", ".attn_hc."}, std::pair{".hc_ffn_", ".ffn_hc."}}) {
      const size_t at = renamed.find(from);
      if (at != renamed.npos) renamed.replace(at, std::string_view(from).size(), to);
    }
    if (renamed != name) other.rename(name, renamed);
  }
  for (const auto& [name, q] : std::map(other.tensors)) {
    const size_t at = name.find("q_conv1d.weight");
    if (at == name.npos) continue;
    const std::string prefix = name.substr(0, at);
    auto stacked = q;
    stacked.name = prefix + "conv1d.weight";
    stacked.shape[0] *= 3;
    for (const char* which : {"k", "v"}) {
      const auto& part = other.tensors.at(str(prefix, which, "_conv1d.weight")).bytes;
      stacked.bytes.insert(stacked.bytes.end(), part.begin(), part.end());
    }
    for (const char* which : {"q", "k", "v"}) other.remove(str(prefix, which, "_conv1d.weight"));
    other.tensors[stacked.name] = stacked;
  }
  return other;
}

TEST(Glm5Next, ReadsTensorNamesOfTransformersClass) {
  for (const char* model : kModels) {
    SCOPED_TRACE(model);
    const SyntheticCheckpoint renamed = in_names_of_class(model);
    ASSERT_NE(renamed.tensors.size(), golden_model(model).tensors.size());
    expect_logits(renamed, model);
  }
}

TEST(Glm5Next, ReadsFilesOfTheTextModelAlone) {
  SyntheticCheckpoint text = golden_model("glm5_next_pools");
  text.config["architectures"] = {"Glm5NextForCausalLM"};
  for (const auto& [name, tensor] : std::map(text.tensors))
    if (name.starts_with(kRoot)) text.rename(name, "model." + name.substr(kRoot.size()));
  expect_logits(text, "glm5_next_pools");
}

TEST(Glm5Next, NamesTensorAsTheFilesDo) {
  SyntheticCheckpoint lacking = golden_model("glm5_next_pools");
  const std::string gate = kRoot + "layers.1.self_attn.indexer.index_kpool_compress_gate";
  lacking.remove(gate);
  expect_bad(plan_of(lacking), {gate});
  SyntheticCheckpoint renamed = in_names_of_class("glm5_next_pools");
  renamed.remove(kRoot + "layers.0.attn_hc.fn");
  expect_bad(plan_of(renamed), {kRoot + "layers.0.", "fn"});
}

// Published configs have the sizes of Kimi Delta Attention in an object of their own, other names
// of layers, and keys that transformers does not read.
TEST(Glm5Next, ReadsKeysOfPublishedFiles) {
  SyntheticCheckpoint published = golden_model("glm5_next_pools");
  json& config = published.config;
  config["linear_attn_config"] = {{"head_dim", 6},
                                  {"num_heads", 4},
                                  {"short_conv_kernel_size", 4},
                                  {"gate_lower_bound", -5.0},
                                  {"kda_layers", {0, 2}},
                                  {"full_attn_layers", {1, 3}}};
  for (const char* key : {"linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim",
                          "linear_lower_bound", "index_kpool_always_select_tail"})
    config.erase(key);
  config["layer_types"] = {"linear_attention", "deepseek_sparse_attention", "linear_attention",
                           "deepseek_sparse_attention"};
  config.update({{"mhc", true},
                 {"mla_use_nope", true},
                 {"index_kpool_compress", true},
                 {"index_kpool_always_select_tail", true},
                 {"indexer_rope_interleave", true},
                 {"topk_method", "noaux_tc"},
                 {"scoring_func", "sigmoid"},
                 {"first_k_dense_replace", 1},
                 {"num_nextn_predict_layers", 1}});
  published.add_floats(kRoot + "layers.4.enorm.weight", {24});
  published.add_floats(kRoot + "layers.4.shared_head.norm.weight", {24});
  expect_logits(published, "glm5_next_pools");
  const Outline what = must(outline(must(published.open())));
  const bool listed = std::any_of(what.parts.begin(), what.parts.end(), [](const auto& part) {
    return part.what == "multi-token prediction, not run" && part.num_tensors == 2;
  });
  EXPECT_TRUE(listed);
}

// A bound of null, and none of the keys: the bound is -5 in each case but the first.
TEST(Glm5Next, ReadsBoundOfDecaysWhereTransformersDoes) {
  SyntheticCheckpoint other = golden_model("glm5_next_shared");
  const GoldenReference want = golden_reference("glm5_next_shared");
  other.config["linear_attn_config"] = {{"gate_lower_bound", nullptr}, {"safe_gate", false}};
  expect_logits(other, "glm5_next_shared");
  std::vector<float> bounded;
  for (const json& config :
       {json{{"linear_lower_bound", -5.0}}, json{{"linear_attn_config", {{"safe_gate", true}}}},
        json{{"linear_attn_config", {{"gate_lower_bound", nullptr}}}}}) {
    SCOPED_TRACE(config.dump());
    SyntheticCheckpoint changed = golden_model("glm5_next_shared");
    changed.config.update(config);
    const std::vector<float> got = must(all_logits(changed, want.ids));
    EXPECT_GT(relative_difference(got, want.logits), 1e-3);
    if (bounded.empty()) bounded = got;
    EXPECT_EQ(got, bounded);
  }
}

// A layer that shares a selection needs no indexer, and reads no tensor of one.
TEST(Glm5Next, LayerSharesTheSelectionBeforeIt) {
  SyntheticCheckpoint other = golden_model("glm5_next_shared");
  EXPECT_FALSE(other.tensors.contains(kRoot + "layers.1.self_attn.indexer.wk.weight"));
  other.config["indexer_types"] = {"full", "full", "full", "full"};
  expect_bad(plan_of(other), {kRoot + "layers.1.self_attn.indexer.wq_b"});
  other.config["indexer_types"] = {"full", "shared", "full", "shared"};
  expect_unsupported(plan_of(other),
                     {"indexer_types: needs full in the layer before one that shares its "
                      "selection; layer 2 has no indexer"});
}

TEST(Glm5Next, CacheHoldsOneIndexKeyForEachPool) {
  // Two layers with 4 heads of keys (6) and values (8), and an index key of 6 every 4 tokens.
  const ModelPlan pools = must(plan_of(golden_model("glm5_next_pools")));
  EXPECT_EQ(pools.cache_bytes_per_token, 2 * (4 * (6 + 8) * 4 + 6 * 4 / 4));
  // Two layers of KDA: 4 heads of [6, 6], and 3 tokens of 3 · 24 columns. Two layers with the last
  // 4 keys of 6 and their gates. Each is a multiple of 64 bytes.
  const auto padded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t delta = padded(4 * 6 * 6 * 4) + padded(3 * 3 * 24 * 4);
  EXPECT_EQ(pools.state_bytes, 2 * delta + 2 * padded(4 * 2 * 6 * 4));
}

// The median of the tokens' differences: another expert or pool changes a token by far more than
// rounding does.
double typical_difference(const std::vector<float>& got, const std::vector<float>& want,
                          size_t tokens) {
  const size_t vocabulary = want.size() / tokens;
  std::vector<double> each;
  for (size_t at = 0; at < want.size(); at += vocabulary) {
    each.push_back(relative_difference(std::span(got).subspan(at, vocabulary),
                                       std::span(want).subspan(at, vocabulary)));
  }
  return median(std::move(each));
}

// Index keys keep 16 bits, so that the cache's rounding chooses no other pools.
TEST(Glm5Next, RunsWithCachesOfFewerBits) {
  const GoldenReference want = golden_reference("glm5_next_pools");
  const ModelPlan plan_of_int8 = must(plan_of(golden_model("glm5_next_pools"), DType::kI8));
  // Codes of keys and values fill 16 columns each; each has a scale.
  EXPECT_EQ(plan_of_int8.cache_bytes_per_token, 2 * (4 * (16 + 16 + 2 * 4) + 6 * 2 / 4));
  const Checkpoint checkpoint = must(golden_model("glm5_next_pools").open());
  const auto logits = [&](DType type) {
    ModelOptions options;
    options.kv_cache = type;
    options.backend = testing::backend("cpu");
    options.threads = 2;
    Model model = must(Model::load(checkpoint, options));
    return must(all_logits(model, want.ids));
  };
  const std::vector<float> exact = logits(DType::kF32);
  for (const DType type : {DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3}) {
    const double off = typical_difference(logits(type), exact, want.ids.size());
    std::printf("%s: %.1e of the logits\n", std::string(name(type)).c_str(), off);
    EXPECT_GT(off, 0);
    EXPECT_LT(off, bits(type) == 8 ? 0.4 : 3e-2) << name(type);
  }
}

TEST(Glm5Next, RejectsDevicesByName) {
  const Description described = must(describe(must(golden_model("glm5_next_pools").open())));
  for (const Platform platform : {Platform::kCuda, Platform::kOpenCl})
    EXPECT_TRUE(check_attention(described.layers[0].attention, platform, DType::kBF16));
  const AttentionDescription& pools = described.layers[1].attention;
  EXPECT_TRUE(check_attention(pools, Platform::kCuda, DType::kBF16));
  const Status refused = check_attention(pools, Platform::kOpenCl, DType::kBF16);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("device: needs cpu or cuda for sparse attention to pools of positions"));
}

TEST(Glm5Next, RejectsSettingsByName) {
  const struct {
    json change;
    const char* line;
    bool unsupported;
  } cases[] = {
      {{{"qk_rope_head_dim", 4}}, "qk_rope_head_dim: needs 0: no RoPE; it is 4", true},
      {{{"q_lora_rank", nullptr}}, "q_lora_rank: needs a number", false},
      {{{"num_key_value_heads", 2}}, "num_key_value_heads: needs 4", false},
      {{{"index_topk", 9}}, "index_topk: needs a multiple of index_kpool, 4; it is 9", false},
      {{{"index_kpool", 0}}, "index_kpool: needs", false},
      {{{"index_kpool_always_select_tail", false}}, "needs true; it is false", true},
      {{{"mhc", false}}, "mhc: needs true; it is false", true},
      {{{"mla_use_nope", false}}, "mla_use_nope: needs true; it is false", true},
      {{{"scoring_func", "softmax"}}, "scoring_func: needs sigmoid; it is softmax", true},
      {{{"topk_method", "greedy"}}, "topk_method: needs noaux_tc; it is greedy", true},
      {{{"hidden_act", "gelu"}}, "hidden_act: needs silu", true},
      {{{"hc_mult", 1}}, "hc_mult: needs", false},
      {{{"swiglu_limit", 0}}, "swiglu_limit: needs a number above 0; it is 0", false},
      {{{"linear_lower_bound", 1}}, "linear_lower_bound: needs a number below 0; it is 1", false},
      {{{"layer_types", {"linear_attention"}}}, "layer_types: needs one for each of 4", false},
      {{{"layer_types", {"sliding_attention", "a", "b", "c"}}}, "it has sliding_attention", true},
      {{{"layer_types", nullptr}, {"linear_attn_config", {{"kda_layers", {0, 1}}}}},
       "layer_types: needs the layers of kda_layers",
       true},
      {{{"indexer_types", {"full", "full"}}}, "indexer_types: needs one for each of 4", false},
      {{{"mlp_layer_types", {"dense", "sparse", "a", "b"}}}, "it has a", true},
      {{{"first_k_dense_replace", 2}}, "first_k_dense_replace: needs the dense layers", false},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.change.dump());
    SyntheticCheckpoint other = golden_model("glm5_next_pools");
    other.config.update(one.change);
    if (one.unsupported)
      expect_unsupported(plan_of(other), {one.line});
    else
      expect_bad(plan_of(other), {one.line});
  }
}

// By default three layers are dense, and every fourth one has MLA.
TEST(Glm5Next, HasDefaultsOfTransformers) {
  SyntheticCheckpoint other = golden_model("glm5_next_pools");
  for (const char* key : {"layer_types", "mlp_layer_types", "indexer_types"})
    other.config.erase(key);
  expect_bad(plan_of(other), {kRoot + "layers.1.self_attn."});
  other.config["layer_types"] = golden_model("glm5_next_pools").config["layer_types"];
  expect_bad(plan_of(other), {kRoot + "layers.1.mlp.gate_proj"});
}

}  // namespace
}  // namespace moracle::glm5_next_test
