// Qwen3.8-Flash-Next: names and keys of its files, hashes of n-grams, and the memory of its state.
// architectures_test.cc compares the same models with transformers, beyond the top-k;
// compressed_attention_test.cc runs them in chunks and in long contexts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::qwen4_exp_test {
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

const std::string kEmbedding = "model.layers.1.ple.ple_embedding.";

Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  ModelOptions options;
  options.device = testing::device("cpu");
  return plan(opened, options);
}

double difference(const SyntheticCheckpoint& checkpoint, const char* of) {
  const GoldenReference want = golden_reference(of);
  const auto got = all_logits(checkpoint, want.ids);
  EXPECT_TRUE(got) << got.error().to_string();
  return got ? relative_difference(*got, want.logits) : INFINITY;
}

void add_numbers(SyntheticCheckpoint& to, const std::string& name,
                 const std::vector<int64_t>& numbers) {
  to.add(kEmbedding + name, DType::kI64, {static_cast<int64_t>(numbers.size())}, numbers);
}

TEST(Qwen4Exp, ReadsWrappedLanguageModel) {
  const SyntheticCheckpoint inner = golden_model("qwen4_exp");
  SyntheticCheckpoint wrapped = inner;
  for (const auto& [name, tensor] : inner.tensors) {
    if (name.starts_with("model.")) wrapped.rename(name, "model.language_model." + name.substr(6));
  }
  wrapped.add_floats("model.visual.patch_embed.proj.weight", {8, 8});
  wrapped.add_floats("mtp.fc.weight", {24, 48});
  wrapped.config = {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
                    {"model_type", "qwen4_exp"},
                    {"text_config", inner.config}};
  EXPECT_LT(difference(wrapped, "qwen4_exp"), kCloseInF32);
}

// Published configs call the layers with an indexer full_attention.
TEST(Qwen4Exp, ReadsPublishedNameOfLayers) {
  SyntheticCheckpoint published = golden_model("qwen4_exp");
  published.config["layer_types"] = {"linear_attention", "linear_attention", "full_attention",
                                     "full_attention"};
  EXPECT_LT(difference(published, "qwen4_exp"), kCloseInF32);
}

TEST(Qwen4Exp, ReadsTableInOnePiece) {
  SyntheticCheckpoint whole = golden_model("qwen4_exp");
  const std::string name = kEmbedding + "ngram_embedding.";
  auto table = whole.tensors.at(name + "shard_0.weight");
  for (int shard = 0; shard < 4; ++shard) {
    const std::string part = str(name, "shard_", shard, ".weight");
    const auto& bytes = whole.tensors.at(part).bytes;
    if (shard > 0) table.bytes.insert(table.bytes.end(), bytes.begin(), bytes.end());
    whole.remove(part);
  }
  table.shape[0] *= 4;
  table.name = name + "weight";
  whole.tensors[table.name] = table;
  EXPECT_LT(difference(whole, "qwen4_exp"), kCloseInF32);
}

// transformers saves the hashes, which follow from config.json, and reads them where they are.
TEST(Qwen4Exp, HashesOfTheFileCount) {
  SyntheticCheckpoint stored = golden_model("qwen4_exp");
  add_numbers(stored, "ngram_heads_vocab_sizes", {31, 37, 41, 43});
  add_numbers(stored, "ngram_heads_offsets", {0, 31, 68, 109});
  EXPECT_LT(difference(stored, "qwen4_exp"), kCloseInF32);
  add_numbers(stored, "layer_multipliers", {1, 3, 5});
  EXPECT_GT(difference(stored, "qwen4_exp"), 1e-3);
  add_numbers(stored, "ngram_heads_offsets", {0, 31, 68, 110});
  expect_bad(plan_of(stored), {kEmbedding + "ngram_heads_vocab_sizes",
                               "needs rows of a table of 152; head 3 has 43 from 110 on"});
  add_numbers(stored, "ngram_heads_offsets", {0, 31, 68});
  expect_bad(plan_of(stored), {kEmbedding + "ngram_heads_offsets", "needs i64 [4]"});
}

// N-grams do not reach over the token that ends a text. Its first id counts.
TEST(Qwen4Exp, TextsEndNgrams) {
  SyntheticCheckpoint other = golden_model("qwen4_exp");
  EXPECT_LT(difference(other, "qwen4_exp"), kCloseInF32);
  other.config["eos_token_id"] = {1, 7};
  EXPECT_LT(difference(other, "qwen4_exp"), kCloseInF32);
  other.config["eos_token_id"] = 7;
  EXPECT_GT(difference(other, "qwen4_exp"), 1e-3);
}

TEST(Qwen4Exp, ReadsTableOfFloats) {
  SyntheticCheckpoint floats = golden_model("qwen4_exp");
  for (int shard = 0; shard < 4; ++shard) {
    auto& table = floats.tensors.at(str(kEmbedding, "ngram_embedding.shard_", shard, ".weight"));
    std::vector<std::byte> wide(table.bytes.size() * 2);
    for (size_t i = 0; i < table.bytes.size(); i += 2)
      std::copy_n(table.bytes.begin() + i, 2, wide.begin() + 2 * i + 2);  // bf16 is half of f32
    table.bytes = std::move(wide);
    table.dtype = DType::kF32;
  }
  EXPECT_LT(difference(floats, "qwen4_exp"), kCloseInF32);
}

TEST(Qwen4Exp, ReloadRefusesOtherNgrams) {
  const SyntheticCheckpoint written = golden_model("qwen4_exp");
  Model model = must(Model::load(must(written.open()), {.threads = 2}));
  SyntheticCheckpoint other = written;
  other.config["eos_token_id"] = 7;
  const Status refused = model.reload(must(other.open()));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("needs the n-grams of the loaded model"));
  const Status done = model.reload(must(written.open()));
  EXPECT_TRUE(done) << done.error().to_string();
}

TEST(Qwen4Exp, CacheAndStateHoldPoolsAndNgrams) {
  const ModelPlan planned = must(plan_of(golden_model("qwen4_exp")));
  // Two layers with 2 heads of keys and values (8), and an index key of 6 every 4 tokens.
  EXPECT_EQ(planned.cache_bytes_per_token, 2 * (2 * 2 * 8 * 4 + 6 * 4 / 4));
  // Two layers of gated DeltaNet: 4 heads of [12, 10], 3 tokens of 88 columns. Two layers with the
  // last 4 keys of 6. N-grams: 2 tokens, and 9 of 4 streams of 24 columns.
  const auto padded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t delta = padded(4 * 12 * 10 * 4) + padded(3 * 88 * 4);
  EXPECT_EQ(planned.state_bytes,
            2 * delta + 2 * padded(4 * 6 * 4) + padded(2 * 4) + padded(9 * 4 * 24 * 4));
}

TEST(Qwen4Exp, RejectsDevicesByName) {
  const Description described = must(describe(must(golden_model("qwen4_exp").open())));
  const AttentionDescription& pools = described.layers[2].attention;
  EXPECT_TRUE(check_attention(pools, Platform::kCuda, DType::kBF16));
  const Status refused = check_attention(pools, Platform::kOpenCl, DType::kBF16);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("device: needs cpu or cuda for sparse attention to pools of positions"));
}

TEST(Qwen4Exp, RejectsSettingsByName) {
  const struct {
    json change;
    const char* line;
    bool unsupported;
  } cases[] = {
      {{{"indexer_kv_heads", 2}}, "indexer_kv_heads: needs 1; it is 2", true},
      {{{"indexer_budget", 9}},
       "indexer_budget: needs a multiple of indexer_compress_ratio, 4; it is 9",
       false},
      {{{"indexer_head_dim", nullptr}}, "indexer_head_dim", false},
      {{{"indexer_head_dim", 2}}, "indexer_head_dim: needs a whole number from 4", false},
      {{{"hc_count", 1}}, "hc_count: needs", false},
      {{{"output_gate_type", "relu"}}, "output_gate_type: needs silu and sigmoid", true},
      {{{"ple_layer_ids", {3}}}, "ple_layer_ids: needs layers of linear_attention", false},
      {{{"ple_layer_ids", {5}}}, "ple_layer_ids: needs layers of linear_attention", false},
      {{{"ple_embed_dim", 25}}, "ple_embed_dim: needs a multiple of 4 heads; it is 25", false},
      {{{"eos_token_id", nullptr}}, "eos_token_id: needs a token that ends a text", false},
      {{{"split_ngram_parts", 7}}, "split_ngram_parts: needs a divisor of 152 rows", false},
      {{{"layer_types", {"linear_attention"}}}, "layer_types: needs one for each of 4", false},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.change.dump());
    SyntheticCheckpoint other = golden_model("qwen4_exp");
    other.config.update(one.change);
    if (one.unsupported)
      expect_unsupported(plan_of(other), {one.line});
    else
      expect_bad(plan_of(other), {one.line});
  }
}

}  // namespace
}  // namespace moracle::qwen4_exp_test
