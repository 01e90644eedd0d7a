// DeepSeek-V3.2, GLM-5 and MiniMax-M3 beyond the top-k of their indexers. architectures_test.cc
// compares the same models with transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::sparse_attention_test {
namespace {

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

const char* const kModels[] = {"deepseek_v32_sparse", "glm_moe_dsa_sparse", "minimax_m3"};
constexpr int64_t kTopK = 8;

bool has_blocks(const SyntheticCheckpoint& checkpoint) {
  return checkpoint.config.contains("index_block_size");
}
void set_top_k(SyntheticCheckpoint& checkpoint, int64_t top_k) {
  nlohmann::json& config = checkpoint.config;
  if (!has_blocks(checkpoint)) {
    config["index_topk"] = top_k;
    return;
  }
  const auto block = config["index_block_size"].get<int64_t>();
  ASSERT_EQ(top_k % block, 0);
  config["index_topk_blocks"] = top_k / block;
}

Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  return plan(opened, {.device = testing::device("cpu")});
}

// Contexts of several pages of the cache.
constexpr int64_t kLong = 700;
SyntheticCheckpoint long_model(const std::string& name, int64_t top_k) {
  SyntheticCheckpoint checkpoint = golden_model(name);
  checkpoint.config["max_position_embeddings"] = 1024;
  set_top_k(checkpoint, top_k);
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
  ModelOptions options;
  options.backend = testing::backend("cpu");
  options.device = testing::device("cpu");
  options.threads = 2;
  options.max_num_tokens = max_num_tokens;
  // With 8 index heads scores may be equal: otherwise a CPU would choose among them by the step.
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

TEST(SparseAttention, OnlyTokensBeyondTopKSeeLess) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const GoldenReference want = golden_reference(name);
    SyntheticCheckpoint dense = golden_model(name);
    set_top_k(dense, 64);
    const std::vector<float> all = must(all_logits(dense, want.ids));
    const auto vocabulary = all.size() / want.ids.size(), seen = vocabulary * kTopK;
    const std::span<const float> sparse(want.logits);
    EXPECT_LT(relative_difference(std::span(all).first(seen), sparse.first(seen)), kCloseInF32);
    for (size_t row = kTopK; row < want.ids.size(); ++row) {
      EXPECT_GT(relative_difference(std::span(all).subspan(row * vocabulary, vocabulary),
                                    sparse.subspan(row * vocabulary, vocabulary)),
                1e-4)
          << row;
    }
  }
}

// Of the weights of its heads, too: without them every score would be 0.
TEST(SparseAttention, EveryTensorOfIndexerMatters) {
  for (const char* name : kModels) {
    const GoldenReference want = golden_reference(name);
    const SyntheticCheckpoint whole = golden_model(name);
    int changed = 0;
    for (const auto& [tensor, data] : whole.tensors) {
      if (tensor.find(".indexer.") == tensor.npos) continue;
      SCOPED_TRACE(str(name, ": ", tensor));
      SyntheticCheckpoint other = whole;
      std::vector<std::byte>& bytes = other.tensors.at(tensor).bytes;
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      // These norms multiply by 1 + weight: -1 in bf16.
      if (has_blocks(whole) && tensor.find("_norm.") != tensor.npos) {
        for (size_t i = 0; i < bytes.size(); i += 2)
          bytes[i] = std::byte{0x80}, bytes[i + 1] = std::byte{0xbf};
      }
      const auto got = all_logits(other, want.ids);
      ASSERT_TRUE(got) << got.error().to_string();
      EXPECT_GT(relative_difference(*got, want.logits), 1e-3);
      ++changed;
    }
    const int of_layer = has_blocks(whole) ? 4 : 5;
    EXPECT_EQ(changed, 2 * of_layer) << "layers with an indexer";
  }
}

TEST(SparseAttention, ChunksOfPromptChangeNoBit) {
  for (const char* name : kModels) {
    for (const int64_t top_k : {kTopK, int64_t{300}}) {
      SCOPED_TRACE(str(name, ", top-", top_k));
      Model model = load(long_model(name, top_k), kLong);
      const std::vector<int32_t> ids = long_prompt(1);
      KvCache whole = must(model.make_cache(kLong));
      const std::vector<float> want = run(model, whole, ids, kLong);
      for (const int64_t chunk : {1, 7, 256}) {
        KvCache cache = must(model.make_cache(kLong));
        EXPECT_EQ(run(model, cache, ids, chunk), want) << chunk << " tokens a step";
      }
    }
  }
}

TEST(SparseAttention, SequencesOfOtherLengthsChangeNoBit) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    Model model = load(long_model(name, 300), 64);
    const int64_t lengths[] = {5, 299, 300, 301, 650};
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

TEST(SparseAttention, TruncatedSequenceGoesOnAsFreshOne) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    Model model = load(long_model(name, 300), 128);
    const std::vector<int32_t> first = long_prompt(1);
    std::vector<int32_t> second = long_prompt(2);
    std::copy_n(first.begin(), 400, second.begin());
    KvCache fresh = must(model.make_cache(kLong)), cache = must(model.make_cache(kLong));
    const std::vector<float> want = run(model, fresh, second, 128);
    run(model, cache, first, 128);
    ASSERT_TRUE(cache.truncate(400));
    EXPECT_EQ(run(model, cache, second, 128), want);
  }
}

// The index keys lie in the same pages as keys and values.
TEST(SparseAttention, ForkedSequenceReadsIndexKeysOfSharedPages) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    Model model = load(long_model(name, 300), 128);
    const std::vector<int32_t> first = long_prompt(1);
    std::vector<int32_t> second = long_prompt(2);
    std::copy_n(first.begin(), 512, second.begin());
    KvCache fresh = must(model.make_cache(kLong)), cache = must(model.make_cache(kLong));
    const std::vector<float> want = run(model, fresh, second, 128);
    run(model, cache, first, 128);
    const std::span<std::byte* const> pages = ModelAccess::state(cache).pages;
    KvCache fork = must(ModelAccess::make_cache(model, kLong, pages.first(2)));
    ASSERT_EQ(fork.length(), 512);
    EXPECT_EQ(run(model, fork, second, 128), want);
    // The first sequence keeps its bits.
    KvCache again = must(model.make_cache(kLong));
    const std::vector<float> before = run(model, again, first, 128);
    ASSERT_TRUE(cache.truncate(690));
    EXPECT_EQ(run(model, cache, first, 128), before);
  }
}

TEST(SparseAttention, CacheHoldsOneIndexKeyPerLayerWithIndexer) {
  // Heads of keys of 6 + 4 and values of 8, index keys of 6; MiniMax-M3: all of 8. Two layers of
  // each model have an indexer.
  struct Case {
    const char* name;
    int64_t layers, heads, index;
  };
  for (const Case& one : {Case{"deepseek_v32_sparse", 2, 4 * (10 + 8), 6},
                          {"glm_moe_dsa_sparse", 4, 4 * (10 + 8), 6},
                          {"minimax_m3", 3, 2 * (8 + 8), 8}}) {
    const Checkpoint checkpoint = must(golden_model(one.name).open());
    ModelOptions options{.device = testing::device("cpu")};
    EXPECT_EQ(must(plan(checkpoint, options)).cache_bytes_per_token,
              (one.layers * one.heads + 2 * one.index) * 4)
        << one.name;
    options.kv_cache = DType::kF8E4M3;
    EXPECT_EQ(must(plan(checkpoint, options)).cache_bytes_per_token,
              one.layers * one.heads + 2 * one.index * 2)
        << one.name;
  }
}

// ---- settings ----

TEST(SparseAttention, SharedLayersFollowFrequencyOrPattern) {
  const char* const name = "glm_moe_dsa_sparse";
  const GoldenReference want = golden_reference(name);
  for (const nlohmann::json& keys :
       {nlohmann::json{{"index_topk_freq", 2}, {"index_skip_topk_offset", 1}},
        {{"index_topk_pattern", "FSFS"}},
        {{"index_topk_pattern", {"full", "shared", "full", "shared"}}, {"index_topk_freq", 1}}}) {
    SCOPED_TRACE(keys.dump());
    SyntheticCheckpoint other = golden_model(name);
    other.config.erase("indexer_types");
    other.config.update(keys);
    const auto got = all_logits(other, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
  // Explicit types count before both.
  SyntheticCheckpoint both = golden_model(name);
  both.config.update({{"index_topk_freq", 1}, {"index_topk_pattern", "FFFF"}});
  const auto got = all_logits(both, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

TEST(SparseAttention, RejectsIndexersByName) {
  const struct {
    const char* model;
    nlohmann::json change;
    const char* line;
    bool unsupported;
  } cases[] = {
      {"glm_moe_dsa_sparse",
       {{"indexer_types", {"shared", "full", "full", "full"}}},
       "indexer_types: needs full in the first layer, which has no earlier one; it is shared",
       false},
      {"glm_moe_dsa_sparse",
       {{"indexer_types", {"full"}}},
       "indexer_types: needs one for each of 4 layers; it has 1",
       false},
      {"glm_moe_dsa_sparse",
       {{"indexer_types", {"full", "none", "full", "none"}}},
       "indexer_types: needs full and shared; it has none",
       true},
      {"glm_moe_dsa_sparse",
       {{"indexer_types", nullptr}, {"index_topk_pattern", "FXFS"}},
       "index_topk_pattern: needs letters F and S; it is FXFS",
       false},
      {"glm_moe_dsa_sparse",
       {{"indexer_rope_interleave", false}},
       "indexer_rope_interleave: needs true; it is false",
       true},
      {"deepseek_v32_sparse",
       {{"indexer_rope_interleave", true}},
       "indexer_rope_interleave: needs false; it is true",
       true},
      {"deepseek_v32_sparse", {{"index_head_dim", 2}}, "index_head_dim: needs", false},
      {"deepseek_v32_sparse", {{"q_lora_rank", nullptr}}, "q_lora_rank: needs", false},
  };
  for (const auto& one : cases) {
    SyntheticCheckpoint other = golden_model(one.model);
    other.config.update(one.change);
    if (one.unsupported)
      expect_unsupported(plan_of(other), {"/config.json: ", one.line});
    else
      expect_bad(plan_of(other), {"/config.json: ", one.line});
  }
}

// transformers has no indexer there, and ignores its tensors.
TEST(SparseAttention, IndexerOfLayerThatSharesIsNotRead) {
  const char* const name = "glm_moe_dsa_sparse";
  const GoldenReference want = golden_reference(name);
  SyntheticCheckpoint more = golden_model(name);
  more.add_floats("model.layers.1.self_attn.indexer.wk.weight", {6, 24});
  const auto got = all_logits(more, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  const Outline what = must(outline(must(more.open())));
  const bool listed = std::any_of(what.parts.begin(), what.parts.end(), [](const auto& part) {
    return part.what == "indexer of a layer that shares a selection, not run" &&
           part.num_tensors == 1;
  });
  EXPECT_TRUE(listed);
}

}  // namespace
}  // namespace moracle::sparse_attention_test
