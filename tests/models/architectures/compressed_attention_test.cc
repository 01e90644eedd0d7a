// DeepSeek-V4: compressed attention, hyper-connections and hash layers; GLM-5.3-Flash and
// Qwen3.8-Flash-Next, where they are the same. architectures_test.cc compares the same models with
// transformers, beyond the window, the rates and the top-k.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/scalar.h"
#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::compressed_attention_test {
namespace {

using nlohmann::json;
using testing::all_logits;
using ::testing::AllOf;
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

const char* const kModels[] = {"deepseek_v4", "deepseek_v4_pro"};

Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint, const ModelOptions& options) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  return plan(opened, options);
}
ModelOptions on_cpu() {
  ModelOptions options;
  options.device = testing::device("cpu");
  return options;
}

// Contexts of several pages of the cache.
constexpr int64_t kLong = 700;
SyntheticCheckpoint long_model(const std::string& name) {
  SyntheticCheckpoint checkpoint = golden_model(name);
  checkpoint.config["max_position_embeddings"] = 1024;
  return checkpoint;
}
std::vector<int32_t> long_prompt(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(kLong);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 40);
  return ids;
}
Model load(const SyntheticCheckpoint& written, int64_t max_num_tokens) {
  const Checkpoint checkpoint = must(written.open());
  ModelOptions options = on_cpu();
  options.backend = testing::backend("cpu");
  options.threads = 2;
  options.max_num_tokens = max_num_tokens;
  options.deterministic = true;
  return must(Model::load(checkpoint, options));
}

/// Runs ids from the cache's length on, `chunk` tokens a step. Returns the logits of the last step.
std::vector<float> run(Model& model, KvCache& cache, std::span<const int32_t> ids, int64_t chunk) {
  int64_t rows = 0;
  for (auto at = cache.length(); at < std::ssize(ids); at += chunk) {
    rows = std::min<int64_t>(chunk, std::ssize(ids) - at);
    const Model::Step step{ids.subspan(at, rows), &cache};
    const Status done = model.forward({&step, 1});
    EXPECT_TRUE(done) << done.error().to_string();
  }
  const auto logits = must(model.logits(rows - 1, 1));
  return {logits.begin(), logits.end()};
}

TEST(CompressedAttention, EveryTensorMatters) {
  for (const std::string& name : testing::compressed_models()) {
    const GoldenReference want = golden_reference(name);
    const SyntheticCheckpoint whole = golden_model(name);
    testing::Sample sample(name);
    for (const auto& [tensor, data] : whole.tensors) {
      if (tensor.find(".experts.") != tensor.npos) continue;  // as in other families
      if (!sample.takes()) continue;
      SCOPED_TRACE(str(name, ": ", tensor));
      SyntheticCheckpoint other = whole;
      std::vector<std::byte>& bytes = other.tensors.at(tensor).bytes;
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      const auto got = all_logits(other, want.ids);
      ASSERT_TRUE(got) << got.error().to_string();
      EXPECT_GT(relative_difference(*got, want.logits), 1e-3);
    }
  }
}

TEST(CompressedAttention, ChunksOfPromptChangeNoBit) {
  for (const std::string& name : testing::compressed_models()) {
    SCOPED_TRACE(name);
    Model model = load(long_model(name), kLong);
    const std::vector<int32_t> ids = long_prompt(1);
    KvCache whole = must(model.make_cache(kLong));
    const std::vector<float> want = run(model, whole, ids, kLong);
    for (const int64_t chunk : {1, 3, 256}) {
      KvCache cache = must(model.make_cache(kLong));
      EXPECT_EQ(run(model, cache, ids, chunk), want) << chunk << " tokens a step";
    }
  }
}

TEST(CompressedAttention, SequencesOfOtherLengthsChangeNoBit) {
  for (const std::string& name : testing::compressed_models()) {
    SCOPED_TRACE(name);
    Model model = load(long_model(name), 64);
    const int64_t lengths[] = {1, 3, 4, 255, 256, 650};
    std::vector<KvCache> caches;
    std::vector<std::vector<int32_t>> ids;
    std::vector<std::vector<float>> want;
    std::vector<Model::Step> steps;
    for (const int64_t length : lengths) {
      ids.push_back(long_prompt(static_cast<uint32_t>(length)));
      KvCache alone = must(model.make_cache(kLong));
      want.push_back(run(model, alone, std::span(ids.back()).first(length + 1), 64));
      caches.push_back(must(model.make_cache(kLong)));
      run(model, caches.back(), std::span(ids.back()).first(length), 64);
    }
    for (size_t s = 0; s < caches.size(); ++s)
      steps.push_back({std::span(ids[s]).subspan(lengths[s], 1), &caches[s]});
    ASSERT_TRUE(model.forward(steps));
    for (size_t s = 0; s < caches.size(); ++s) {
      const auto row = must(model.logits(static_cast<int64_t>(s), 1));
      EXPECT_EQ(std::vector<float>(row.begin(), row.end()), want[s]) << lengths[s];
    }
  }
}

// Tokens that no entry has yet are recurrent state: it has no positions.
TEST(CompressedAttention, SequenceTruncatesToTheLastStepAlone) {
  for (const std::string& name : testing::compressed_models()) {
    SCOPED_TRACE(name);
    Model model = load(long_model(name), 128);
    const std::vector<int32_t> first = long_prompt(1);
    std::vector<int32_t> second = long_prompt(2);
    std::copy_n(first.begin(), 399, second.begin());
    KvCache fresh = must(model.make_cache(kLong)), cache = must(model.make_cache(kLong));
    const std::vector<float> want = run(model, fresh, second, 128);
    run(model, cache, std::span(first).first(399), 128);
    run(model, cache, std::span(first).first(405), 128);
    const Status refused = cache.truncate(300);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().to_string(),
                AllOf(HasSubstr("recurrent layers"), HasSubstr("300")));
    ASSERT_EQ(cache.length(), 405);
    ASSERT_TRUE(cache.truncate(399));
    EXPECT_EQ(run(model, cache, second, 128), want);
    ASSERT_TRUE(cache.truncate(0));
    EXPECT_EQ(run(model, cache, second, 128), want);
    EXPECT_TRUE(ModelAccess::can_share_pages(model));  // with the state at their end
  }
}

TEST(CompressedAttention, CacheHoldsOneVectorForEachPositionAndEntry) {
  // Vectors of 8 for every position; entries of 8, every 2 tokens with an index key of 6, or
  // every 4.
  const ModelPlan mixed = must(plan_of(golden_model("deepseek_v4"), on_cpu()));
  EXPECT_EQ(mixed.cache_bytes_per_token, 4 * 32 + 2 * (32 + 24) / 2 + 32 / 4);
  // The last 4 tokens of two series and their gates, of the entries and of the index keys; 4 tokens
  // of one series.
  const int64_t sparse = 4 * 4 * (8 + 6) * 4, heavy = 4 * 2 * 8 * 4;
  EXPECT_EQ(mixed.state_bytes, 2 * sparse + heavy);
  const ModelPlan pro = must(plan_of(golden_model("deepseek_v4_pro"), on_cpu()));
  EXPECT_EQ(pro.cache_bytes_per_token, 4 * 32 + 2 * (32 + 24) / 2 + 2 * 32 / 4);
}

TEST(CompressedAttention, RejectsDevicesAndCachesByName) {
  const SyntheticCheckpoint model = golden_model("deepseek_v4");
  for (const DType type : {DType::kI8, DType::kF8E4M3}) {
    ModelOptions options = on_cpu();
    options.kv_cache = type;
    const auto planned = plan_of(model, options);
    ASSERT_FALSE(planned);
    EXPECT_EQ(planned.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(planned.error().to_string(),
                HasSubstr("kv_cache: needs f32, bf16 or f16 with compressed attention"));
  }
  const Description described = must(describe(must(model.open())));
  const AttentionDescription& attention = described.layers[0].attention;
  EXPECT_TRUE(check_attention(attention, Platform::kCuda, DType::kBF16));
  const Status refused = check_attention(attention, Platform::kOpenCl, DType::kBF16);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("device: needs cpu or cuda for compressed attention, because other"));
  ModelOptions options = on_cpu();
  for (const DType type : {DType::kBF16, DType::kF16}) {
    options.kv_cache = type;
    EXPECT_TRUE(plan_of(model, options));
  }
}

// ---- names and settings of published files ----

// "model.layers.0.attn.norm.weight" is published as "layers.0.attn.kv_norm.weight".
std::string published_name(std::string name) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    if (at != name.npos) name.replace(at, from.size(), to);
  };
  replace("model.embed_tokens.", "embed.");
  replace("model.hc_head.hc_", "hc_head_");
  replace(".attn.norm.", ".attn.kv_norm.");
  if (name.starts_with("model.")) name = name.substr(6);
  return name;
}
SyntheticCheckpoint published(const std::string& model) {
  SyntheticCheckpoint other = golden_model(model);
  for (const auto& [name, tensor] : std::map(other.tensors)) {
    if (published_name(name) != name) other.rename(name, published_name(name));
  }
  return other;
}

// The same model with weights in f32 that equal the codes times their scales, each of one block.
SyntheticCheckpoint dequantized(const std::string& folder) {
  SyntheticCheckpoint floats = testing::model_in(folder);
  floats.config.erase("quantization_config");
  for (auto& [name, tensor] : floats.tensors) {
    if (tensor.dtype != DType::kF8E4M3) continue;
    const testing::TensorBytes& scales = floats.at(name + "_scale");
    float scale = 0;
    EXPECT_EQ(scales.bytes.size(), sizeof scale);
    std::memcpy(&scale, scales.bytes.data(), sizeof scale);
    std::vector<float> values;
    for (const std::byte code : tensor.bytes)
      values.push_back(e4m3_to_float(static_cast<uint8_t>(code)) * scale);
    tensor = {name, DType::kF32, tensor.shape, testing::bytes_of(values)};
  }
  std::erase_if(floats.tensors,
                [](const auto& one) { return one.first.ends_with(".weight_scale"); });
  return floats;
}

// o_a_proj has 12 rows in groups of 6, and one scale for 128 rows.
TEST(CompressedAttention, GroupsOfOutputsShareABlockOfScales) {
  for (const char* const name : kModels) {
    const testing::TemporaryFolder folder;
    const std::string to = folder.path() + "/quantized";
    must(quantize(must(Checkpoint::open(testing::golden_folder(name))),
                  must(QuantizationMap::parse("fp8-per-block")), to));
    const GoldenReference want = golden_reference(name);
    ModelOptions options = {.backend = testing::backend("cpu"), .threads = 2};
    options.activations = ActivationPrecision::k16Bit;
    Model model = must(Model::load(must(Checkpoint::open(to)), options));
    const std::vector<float> got = must(all_logits(model, want.ids));
    EXPECT_LT(relative_difference(got, must(all_logits(dequantized(to), want.ids))), kCloseInF32)
        << name;
    EXPECT_GT(relative_difference(got, want.logits), 1e-3) << name;
  }
}

TEST(DeepseekV4, ReadsTensorNamesOfPublishedFiles) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const GoldenReference want = golden_reference(name);
    const auto got = all_logits(published(name), want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
}

TEST(DeepseekV4, NamesTensorAsTheFilesDo) {
  SyntheticCheckpoint lacking = published("deepseek_v4");
  lacking.remove("layers.2.attn.wq_a.weight");
  expect_bad(plan_of(lacking, on_cpu()), {"layers.2.attn.wq_a.weight"});
  SyntheticCheckpoint twice = golden_model("deepseek_v4");
  twice.add_floats("layers.2.attn.kv_norm.weight", {8});
  expect_bad(plan_of(twice, on_cpu()),
             {"tensor 'model.layers.2.attn.norm.weight': needs to be there under one name; the "
              "files have it as layers.2.attn.kv_norm.weight, too"});
}

// Published configs have older keys: one YaRN, the columns with RoPE, the number of hash layers.
TEST(DeepseekV4, ReadsOlderKeys) {
  const GoldenReference want = golden_reference("deepseek_v4");
  SyntheticCheckpoint older = published("deepseek_v4");
  json& config = older.config;
  const json rates = config["compress_rates"];
  config["compress_rate_csa"] = rates["compressed_sparse_attention"];
  config["compress_rate_hca"] = rates["heavily_compressed_attention"];
  json yarn = config["rope_parameters"]["compress"];
  for (const char* key : {"rope_theta", "partial_rotary_factor", "attention_factor"})
    yarn.erase(key);
  yarn["type"] = yarn["rope_type"];
  yarn.erase("rope_type");
  config["rope_scaling"] = yarn;
  config["num_hash_layers"] = 2;
  config["compress_ratios"] = {0, 4, 128, 4, 0};  // the last one is for multi-token prediction
  for (const char* key : {"compress_rates", "rope_parameters", "mlp_layer_types", "layer_types",
                          "partial_rotary_factor"})
    config.erase(key);
  older.add_floats("mtp.0.attn.wq_a.weight", {10, 24});
  const auto got = all_logits(older, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  const Outline what = must(outline(must(older.open())));
  const bool listed = std::any_of(what.parts.begin(), what.parts.end(), [](const auto& part) {
    return part.what == "multi-token prediction, not run" && part.num_tensors == 1;
  });
  EXPECT_TRUE(listed);
}

TEST(DeepseekV4, RejectsSettingsByName) {
  const struct {
    json change;
    const char* line;
    bool unsupported;
  } cases[] = {
      {{{"layer_types", {"sliding_attention"}}}, "layer_types: needs one for each of 4", false},
      {{{"layer_types", {"full_attention", "a", "b", "c"}}}, "it has full_attention", true},
      {{{"layer_types", nullptr}, {"compress_ratios", {0, 4, 8, 0}}}, "it has 8", true},
      {{{"layer_types", nullptr}, {"compress_ratios", {0, 4}}}, "4 layers; it has 2", false},
      {{{"mlp_layer_types", {"moe"}}}, "mlp_layer_types: needs one for each of 4", false},
      {{{"mlp_layer_types", {"moe", "moe", "moe", "dense"}}}, "it has dense", true},
      {{{"num_key_value_heads", 2}}, "num_key_value_heads: needs 1; it is 2", true},
      {{{"norm_topk_prob", false}}, "norm_topk_prob: needs true; it is false", true},
      {{{"scoring_func", "sigmoid"}}, "scoring_func: needs sqrtsoftplus; it is sigmoid", true},
      {{{"o_groups", 3}}, "o_groups: needs a divisor of 32 columns; it is 3", false},
      {{{"hc_mult", 1}}, "hc_mult: needs", false},
      {{{"attention_bias", true}}, "attention_bias: needs false; it is true", true},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.change.dump());
    SyntheticCheckpoint other = golden_model("deepseek_v4");
    other.config.update(one.change);
    if (one.unsupported)
      expect_unsupported(plan_of(other, on_cpu()), {one.line});
    else
      expect_bad(plan_of(other, on_cpu()), {one.line});
  }
}

TEST(DeepseekV4, RejectsExpertOfTokenThatIsNotThere) {
  SyntheticCheckpoint other = golden_model("deepseek_v4");
  const int64_t expert = 8;
  std::memcpy(other.tensors.at("model.layers.1.ffn.gate.tid2eid").bytes.data() + 5 * 8, &expert, 8);
  expect_bad(plan_of(other, on_cpu()), {"tid2eid", "needs experts from 0 to 7; element 5 is 8"});
}

}  // namespace
}  // namespace moracle::compressed_attention_test
