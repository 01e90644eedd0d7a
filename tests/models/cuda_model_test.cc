// Tests whole models on a GPU: against the CPU, in graphs, in batches, and with little cache
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "base/text.h"
#include "golden_model.h"
#include "models/decoder/model_state.h"
#include "models/generation/sampler.h"
#include "paths.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::cuda_model_test {
namespace {

using testing::golden_folder;
using testing::relative_difference;

const std::string kBox = testing::models_dir() + "/qwen3moe-gptq-int4-g128";

class CudaModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = open_device("cuda"); !device)
      GTEST_SKIP() << device.error().to_string();
  }
  static Model load(const std::string& folder, const ModelOptions& options) {
    const Checkpoint checkpoint = testing::must(Checkpoint::open(folder));
    return testing::must(Model::load(checkpoint, options));
  }
  static ModelOptions on(const char* device, bool graphs = true, bool deterministic = false) {
    ModelOptions options;
    options.device = testing::device(device);
    options.threads = 2;
    options.graphs = graphs;
    options.deterministic = deterministic;
    return options;
  }
  static std::vector<int32_t> ids_of(const std::string& text) {
    return *Tokenizer::open(kBox)->encode(text);
  }
  /// The logits of each step of decoding `ids`, one token at a time.
  static std::vector<std::vector<float>> decode(Model& model, const std::vector<int32_t>& ids,
                                                size_t prompt) {
    KvCache cache = testing::must(model.make_cache(static_cast<int64_t>(ids.size())));
    std::vector<std::vector<float>> all;
    for (size_t at = 0; at < ids.size();) {
      const size_t count = at == 0 ? prompt : 1;
      const Model::Step step{{&ids[at], count}, &cache};
      testing::must(model.forward({&step, 1}));
      const auto logits = testing::must(model.logits(static_cast<int64_t>(count) - 1, 1));
      all.emplace_back(logits.begin(), logits.end());
      at += count;
    }
    return all;
  }
};

const char* const kText =
    "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say unto them, "
    "When ye be come into the land of your habitations, which I give unto you, and will make an "
    "offering by fire unto the LORD, a burnt offering, or a sacrifice in performing a vow";

TEST_F(CudaModel, MatchesCpuContinuationWhereMarginIsClear) {
  Model cpu = load(kBox, on("cpu")), gpu = load(kBox, on("cuda"));
  for (const char* text : {"And the LORD spake unto Moses, saying,", "In the beginning God"}) {
    const std::vector<int32_t> prompt = ids_of(text);
    const auto want = generate(cpu, prompt, {.max_tokens = 48}),
               got = generate(gpu, prompt, {.max_tokens = 48});
    ASSERT_TRUE(want) << want.error().to_string();
    ASSERT_TRUE(got) << got.error().to_string();
    size_t same = 0;
    while (same < want->ids.size() && got->ids[same] == want->ids[same]) ++same;
    std::printf("%zu of %zu tokens are the same\n", same, want->ids.size());
    if (same == want->ids.size()) continue;
    // Where the ids differ, the CPU's logits of both are within bf16 rounding.
    std::vector<int32_t> until = prompt;
    until.insert(until.end(), want->ids.begin(), want->ids.begin() + static_cast<int64_t>(same));
    const std::vector<float> logits = decode(cpu, until, until.size()).back();
    EXPECT_LT(logits[want->ids[same]] - logits[got->ids[same]], 0.3f) << "step " << same;
  }
}

TEST_F(CudaModel, MatchesCpuPerplexity) {
  std::ifstream file(testing::models_dir() + "/valid.txt", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<int32_t> ids = ids_of(text.substr(0, 12'000));
  Model cpu = load(kBox, on("cpu")), gpu = load(kBox, on("cuda"));
  const double want = perplexity(cpu, ids, 512)->perplexity,
               got = perplexity(gpu, ids, 512)->perplexity;
  std::printf("perplexity %.4f, on a CPU %.4f\n", got, want);
  EXPECT_NEAR(got / want, 1, 5e-3);
}

// The GPU's top-k gives the same draws as all logits on the host.
TEST_F(CudaModel, SamplingMatchesSamplingFromAllLogits) {
  Model gpu = load(kBox, on("cuda"));
  const std::vector<int32_t> prompt = ids_of(kText);
  auto cache = gpu.make_cache(static_cast<int64_t>(prompt.size()));
  ASSERT_TRUE(cache);
  const Model::Step step{prompt, &*cache};
  ASSERT_TRUE(gpu.forward({&step, 1}));
  const SamplingOptions ways[] = {{.temperature = 0},
                                  {.temperature = 1, .top_k = 20, .top_p = 0.95f},
                                  {.temperature = 2, .top_k = 256, .seed = 3},
                                  {.temperature = 2, .top_k = 400, .seed = 4},
                                  {.temperature = 1, .top_p = 0.9f, .seed = 5}};
  for (const SamplingOptions& way : ways) {
    std::vector<Sampler> samplers(40, Sampler(way));
    std::vector<Sampler> alone = samplers;
    std::vector<int32_t> ids(samplers.size(), -1);
    ASSERT_TRUE(draw(gpu, 1, samplers, ids));
    const auto logits = gpu.logits(1, 40);
    ASSERT_TRUE(logits);
    for (size_t s = 0; s < ids.size(); ++s) {
      const size_t vocab = gpu.vocab_size();
      EXPECT_EQ(ids[s], alone[s].draw(logits->subspan(s * vocab, vocab))) << s;
    }
  }
  const auto refused = gpu.top_k_logits(0, 1, 257);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(CudaModel, ReplayedStepsMatchEagerStepsBitForBit) {
  std::vector<std::string> folders = {kBox};
  for (const std::string& name : testing::golden_models()) folders.push_back(golden_folder(name));
  for (const std::string& name : testing::compressed_models())
    folders.push_back(golden_folder(name));
  for (const std::string& folder : folders) {
    SCOPED_TRACE(folder);
    Model eager = load(folder, on("cuda", false)), replayed = load(folder, on("cuda", true));
    std::vector<int32_t> ids;
    const auto count = static_cast<int32_t>(std::min<int64_t>(40, eager.max_context()));
    for (int32_t i = 0; i < count; ++i) ids.push_back((i * 7 + 3) % 40);
    const auto want = decode(eager, ids, 5), got = decode(replayed, ids, 5);
    EXPECT_EQ(got, want);
    EXPECT_EQ(ModelAccess::state(eager).recorded.replays(), 0);
    EXPECT_EQ(ModelAccess::state(replayed).recorded.replays(), count - 6);
    // Runs again with the recorded graphs.
    EXPECT_EQ(decode(replayed, ids, 5), want);
    EXPECT_EQ(ModelAccess::state(replayed).recorded.replays(), count - 6 + count - 5);
  }
}

// Crosses the ends of pages and of the context that a launch is recorded for.
TEST_F(CudaModel, ReplayedStepsGrowWithTheContext) {
  Model eager = load(kBox, on("cuda", false)), replayed = load(kBox, on("cuda", true));
  std::vector<int32_t> ids = ids_of(kText);
  while (ids.size() < 300) ids.push_back(ids[ids.size() - 60]);
  EXPECT_EQ(decode(replayed, ids, 100), decode(eager, ids, 100));
  EXPECT_GT(ModelAccess::state(replayed).recorded.replays(), 150);
}

// Steps of two sequences with one to four tokens, as with drafts.
std::vector<std::vector<float>> verify(Model& model, std::span<const int32_t> ids) {
  std::vector<KvCache> caches;
  for (int s = 0; s < 2; ++s) caches.push_back(*model.make_cache(model.max_context()));
  std::vector<std::vector<float>> rows;
  constexpr size_t kCounts[][2] = {{4, 1}, {4, 4}, {1, 3}};
  for (int i = 0; i < 24; ++i) {
    std::vector<Model::Step> steps;
    int64_t count = 0;
    for (size_t s = 0; s < 2; ++s) {
      const auto at = static_cast<size_t>(caches[s].length()), tokens = kCounts[i % 3][s];
      steps.push_back({ids.subspan(at, tokens), &caches[s]});
      count += static_cast<int64_t>(tokens);
    }
    EXPECT_TRUE(model.forward(steps));
    const auto logits = model.logits(0, count);
    EXPECT_TRUE(logits);
    rows.emplace_back(logits->begin(), logits->end());
    for (KvCache& cache : caches) {
      if (i % 3 == 1) {
        EXPECT_TRUE(cache.truncate(cache.length() - 2));
      }
    }
  }
  return rows;
}

TEST_F(CudaModel, ReplayedStepsWithDraftsMatchEagerStepsBitForBit) {
  Model eager = load(kBox, on("cuda", false)), replayed = load(kBox, on("cuda", true));
  std::vector<int32_t> ids = ids_of(kText);
  while (ids.size() < 128) ids.push_back(ids[ids.size() - 20]);
  const auto want = verify(eager, ids);
  EXPECT_EQ(verify(replayed, ids), want);
  EXPECT_EQ(ModelAccess::state(eager).recorded.replays(), 0);
  EXPECT_EQ(ModelAccess::state(replayed).recorded.replays(), 3 * 4);
  EXPECT_EQ(verify(replayed, ids), want);
  EXPECT_EQ(ModelAccess::state(replayed).recorded.replays(), 3 * 4 + 3 * 8);
}

// Runs models on several GPUs in one process, in turn. No model may use another GPU.
TEST_F(CudaModel, EveryGpuGivesSameResult) {
  const std::vector<int32_t> ids = ids_of(kText);
  std::vector<Model> models;
  for (int index = 0;; ++index) {
    const std::string name = str("cuda:", index);
    if (!open_device(name)) break;
    models.push_back(load(kBox, on(name.c_str())));
    EXPECT_EQ(models.back().choices().front().selection.request.device_index, index);
  }
  if (models.size() < 2) GTEST_SKIP() << "needs two GPUs; there is one";
  std::vector<KvCache> caches;
  for (Model& model : models) caches.push_back(*model.make_cache(static_cast<int64_t>(ids.size())));
  for (size_t at = 0; at < ids.size(); ++at) {
    std::vector<std::vector<float>> all;
    for (size_t m = 0; m < models.size(); ++m) {
      const Model::Step step{{&ids[at], 1}, &caches[m]};
      ASSERT_TRUE(models[m].forward({&step, 1}));
      const auto logits = models[m].logits(0, 1);
      ASSERT_TRUE(logits) << logits.error().to_string();
      all.emplace_back(logits->begin(), logits->end());
    }
    for (size_t m = 1; m < models.size(); ++m) ASSERT_EQ(all[m], all[0]) << "token " << at;
  }
}

// Also of models with recurrent layers, whose sequences have states, and with sparse attention.
TEST_F(CudaModel, BatchedSequencesMatchSingleSequences) {
  for (const auto& [folder, graphs] : {std::pair{kBox, false},
                                       {kBox, true},
                                       {golden_folder("qwen3_next"), true},
                                       {golden_folder("qwen3_5_moe"), false},
                                       {golden_folder("lfm2_moe"), true},
                                       {golden_folder("glm_moe_dsa_sparse"), true},
                                       {golden_folder("deepseek_v4"), true},
                                       {golden_folder("glm5_next_pools"), true}}) {
    SCOPED_TRACE(folder);
    Model model = load(folder, on("cuda", graphs, true));
    std::vector<int32_t> ids = ids_of(kText);
    for (int32_t& id : ids) id %= static_cast<int32_t>(model.vocab_size());
    const std::vector<std::vector<int32_t>> sequences = {{ids.begin(), ids.begin() + 20},
                                                         {ids.begin() + 3, ids.begin() + 50},
                                                         {ids.begin() + 7, ids.begin() + 10}};
    std::vector<std::vector<std::vector<float>>> alone;
    for (const auto& sequence : sequences) alone.push_back(decode(model, sequence, 1));
    std::vector<KvCache> caches;
    for (size_t s = 0; s < sequences.size(); ++s) caches.push_back(*model.make_cache(64));
    for (size_t at = 0; at < 47; ++at) {
      std::vector<Model::Step> steps;
      std::vector<size_t> whose;
      for (size_t s = 0; s < sequences.size(); ++s) {
        if (at >= sequences[s].size()) continue;
        steps.push_back({{&sequences[s][at], 1}, &caches[s]});
        whose.push_back(s);
      }
      ASSERT_TRUE(model.forward(steps));
      const auto logits = model.logits(0, static_cast<int64_t>(steps.size()));
      ASSERT_TRUE(logits) << logits.error().to_string();
      const size_t vocab = logits->size() / steps.size();
      for (size_t i = 0; i < steps.size(); ++i) {
        const std::vector<float> row(logits->begin() + i * vocab,
                                     logits->begin() + (i + 1) * vocab);
        ASSERT_EQ(row, alone[whose[i]][at]) << "sequence " << whose[i] << ", token " << at;
      }
    }
  }
}

TEST_F(CudaModel, OneStepMatchesManySteps) {
  for (const std::string& name : testing::golden_models()) {
    Model model = load(golden_folder(name), on("cuda"));
    const std::vector<int32_t> ids = testing::golden_reference(name).ids;
    const auto one = decode(model, ids, ids.size()), many = decode(model, ids, 1);
    EXPECT_LT(relative_difference(many.back(), one.back()), 3e-2) << name;
  }
}

// Entries and pools that begin in one step end in another. Contexts of several pages.
TEST_F(CudaModel, ChunksOfPromptsWithEntriesChangeNoBit) {
  constexpr int64_t kLong = 700;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kLong; ++i) ids.push_back((i * i + 3 * i) % 37);
  for (const std::string& name : testing::compressed_models()) {
    SCOPED_TRACE(name);
    testing::SyntheticCheckpoint written = testing::golden_model(name);
    written.config["max_position_embeddings"] = 1024;
    const Checkpoint checkpoint = testing::must(written.open());
    ModelOptions options = on("cuda", true, true);
    options.max_num_tokens = kLong;
    Model model = testing::must(Model::load(checkpoint, options));
    std::vector<float> want;
    for (const int64_t chunk : {kLong, int64_t{256}, int64_t{3}, int64_t{1}}) {
      KvCache cache = testing::must(model.make_cache(kLong));
      int64_t rows = 0;
      for (int64_t at = 0; at < kLong; at += rows) {
        rows = std::min(chunk, kLong - at);
        const Model::Step step{std::span(ids).subspan(at, rows), &cache};
        testing::must(model.forward({&step, 1}));
      }
      const auto logits = testing::must(model.logits(rows - 1, 1));
      const std::vector<float> got(logits.begin(), logits.end());
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << chunk << " tokens a step";
    }
  }
}

TEST_F(CudaModel, F16OverflowLeavesCacheUnchanged) {
  auto checkpoint = testing::golden_model("qwen3_moe");
  ModelOptions options = on("cuda");
  options.kv_cache = DType::kF16;
  const Checkpoint opened = *checkpoint.open();
  auto model = Model::load(opened, options);
  ASSERT_TRUE(model) << model.error().to_string();
  ModelOptions exact = on("cuda");
  auto same = Model::load(opened, exact);
  ASSERT_TRUE(same) << same.error().to_string();
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_LT(relative_difference(decode(*model, ids, 3).back(), decode(*same, ids, 3).back()), 1e-2);
}

}  // namespace
}  // namespace moracle::cuda_model_test
