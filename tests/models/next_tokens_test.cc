// Tests layers for multi-token prediction: they compute what tools/make_next_token_golden.py says,
// and their drafts change no text.
#include "models/speculation/next_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/text.h"
#include "golden_model.h"
#include "logit_bounds.h"
#include "models/decoder/model_state.h"
#include "support/must.h"

namespace moracle::next_tokens_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

std::string folder_of(const std::string& name) {
  return testing::golden_dir() + "/next_tokens/" + name;
}

// The models, and those of the files that llama.cpp's converter writes of them.
struct Files {
  const char* name;
  const char* gguf = "";
  std::string path() const {
    return *gguf == 0 ? folder_of(name) : str(testing::golden_dir(), "/gguf/next_tokens/", gguf);
  }
};
constexpr Files kFiles[] = {{"glm4_moe"},
                            {"deepseek_v3"},
                            {"qwen3_next"},
                            {"qwen3_5_moe"},
                            {"mimo_v2_flash"},
                            {"deepseek_v32_sparse"},
                            {"glm_moe_dsa_sparse"},
                            {"glm4_moe_lite"},
                            {"glm4_moe", "glm4moe.gguf"},
                            {"deepseek_v32_sparse", "deepseek32.gguf"},
                            {"glm_moe_dsa_sparse", "glm-dsa.gguf"},
                            {"glm4_moe_lite", "deepseek2.gguf"},
                            {"qwen3_next", "qwen3next.gguf"},
                            {"qwen3_5_moe", "qwen35moe.gguf"},
                            {"mimo_v2_flash", "mimo2.gguf"}};

class NextTokensOf : public ::testing::TestWithParam<Files> {
 protected:
  ModelOptions options() const {
    return {.backend = testing::backend("cpu"),
            .threads = 2,
            .deterministic = true,
            .next_tokens = true};
  }
  const std::string folder_ = folder_of(GetParam().name);
  const Checkpoint checkpoint_ = must(Checkpoint::open(GetParam().path()));
};
INSTANTIATE_TEST_SUITE_P(Models, NextTokensOf, ::testing::ValuesIn(kFiles), [](const auto& test) {
  std::string name = str(test.param.name, "_", test.param.gguf);
  std::replace_if(
      name.begin(), name.end(), [](char one) { return one == '.' || one == '-'; }, '_');
  return name;
});

// In one step, then with the sequence in parts.
TEST_P(NextTokensOf, LogitsMatchTheReference) {
  Model model = must(Model::load(checkpoint_, options()));
  Model& layer = *ModelAccess::next_tokens(model);
  const testing::GoldenReference reference = testing::reference_in(folder_);
  const std::vector<float> logits = must(testing::all_logits(model, reference.ids));
  const auto count = static_cast<int64_t>(reference.ids.size());
  const double bound = testing::logit_bound(model.choices(), count);
  EXPECT_LT(testing::relative_difference(logits, reference.logits), bound);
  const auto file = testing::SafetensorsImage::open(folder_ + "/reference.safetensors");
  const TensorView& stored = file->tensors().at("next_logits");
  const std::vector<float> wanted(stored.as<float>(), stored.as<float>() + stored.num_elements());
  // The layer reads the model's hidden states, so that it has the errors of both, and those of the
  // matrix that joins them with embeddings, which is no choice: sums of 2 · hidden_size products in
  // f32 (logit_bounds.h), on both sides.
  const auto joined = static_cast<double>(2 * ModelAccess::state(layer).spec.hidden_size);
  const double join = 3 * 2 * 0.42 * std::ldexp(1, -24) * std::sqrt(1 + joined);
  const double both = bound + testing::logit_bound(layer.choices(), count) + join;
  for (const int64_t part : {count, int64_t{5}, int64_t{1}}) {
    KvCache cache = must(model.make_cache(count));
    KvCache next = must(make_next_token_cache(model, count + 3));  // with space for drafts
    std::vector<float> got;
    for (int64_t first = 0; first < count - 1; first += part) {
      const int64_t size = std::min(part, count - first);
      const Model::Step step{std::span(reference.ids).subspan(first, size), &cache};
      must(model.forward({&step, 1}));
      const int64_t known = std::min(size, count - 1 - first);
      const NextTokenRows rows{&next, 0, std::span(reference.ids).subspan(first + 1, known), 0};
      must(draft_next_tokens(model, {&rows, 1}));
      const auto some = must(layer.logits(0, known));
      got.insert(got.end(), some.begin(), some.end());
    }
    EXPECT_LT(testing::relative_difference(got, wanted), both) << part;
    // The first draft follows the last known token.
    must(next.truncate(0));
    must(cache.truncate(0));
    const Model::Step all{reference.ids, &cache};
    must(model.forward({&all, 1}));
    const NextTokenRows rows{&next, 0, std::span(reference.ids).subspan(1), 3};
    const std::vector<int32_t> drafts = must(draft_next_tokens(model, {&rows, 1}))[0];
    ASSERT_EQ(drafts.size(), 3u);
    const auto last = wanted.end() - model.vocab_size();
    EXPECT_EQ(drafts[0], std::max_element(last, wanted.end()) - last);
    EXPECT_EQ(next.length(), count - 1);
  }
}

TEST_P(NextTokensOf, TextsEqualPlainDecoding) {
  Model model = must(Model::load(checkpoint_, options()));
  SpeculationCounts all;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    std::mt19937 engine(seed);
    std::vector<int32_t> prompt(3 + 2 * seed);
    for (int32_t& id : prompt) id = static_cast<int32_t>(engine() % 40);
    GenerateOptions wanted{.max_tokens = 24};
    if (seed % 2 == 1) wanted.sampling = {.temperature = 0.4F, .seed = seed};
    const Generation plain = must(generate(model, prompt, wanted));
    for (const int64_t drafts : {1, 3}) {
      wanted.speculation = {.drafter = Drafter::kAuto, .max_drafts = drafts, .adaptive = false};
      const Generation got = must(generate(model, prompt, wanted));
      EXPECT_EQ(got.ids, plain.ids) << seed;
      EXPECT_GT(got.speculation.drafted, 0);
      wanted.speculation.adaptive = true;
      EXPECT_EQ(must(generate(model, prompt, wanted)).ids, plain.ids) << seed;
      all.drafted += got.speculation.drafted;
      all.accepted += got.speculation.accepted;
    }
  }
  EXPECT_LT(all.accepted, all.drafted);
}

// Penalties and a scheme that loading chooses.
TEST_P(NextTokensOf, EditedTextsOfQuantizedModelsEqualPlainDecoding) {
  for (const char* scheme : {"", "int8-per-channel"}) {
    if (*scheme != 0 && *GetParam().gguf != 0) continue;
    ModelOptions quantized = options();
    quantized.quantization = testing::quantization(scheme);
    Model model = must(Model::load(checkpoint_, quantized));
    GenerateOptions wanted{
        .max_tokens = 20,
        .edits = {.repetition_penalty = 1.1F, .frequency_penalty = 0.2F, .presence_penalty = 0.4F}};
    const std::vector<int32_t> prompt = {5, 9, 3, 5, 9, 3, 7};
    const Generation plain = must(generate(model, prompt, wanted));
    wanted.speculation = {.drafter = Drafter::kMtp, .max_drafts = 4, .adaptive = false};
    const Generation got = must(generate(model, prompt, wanted));
    EXPECT_EQ(got.ids, plain.ids);
    EXPECT_GT(got.speculation.drafted, 0);
  }
}

// Its memory is part of the plan.
TEST_P(NextTokensOf, PlanCountsTheLayer) {
  ModelOptions without = options();
  without.next_tokens = false;
  const ModelPlan plain = must(plan(checkpoint_, without)),
                  with = must(plan(checkpoint_, options()));
  EXPECT_GT(with.weight_bytes, plain.weight_bytes);
  const Model model = must(Model::load(checkpoint_, options()));
  EXPECT_EQ(model.weight_bytes(), with.weight_bytes);
}

TEST(NextTokens, RefusesFilesWithoutTheLayer) {
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder("glm4_moe")));
  EXPECT_FALSE(has_next_tokens(checkpoint));
  const auto refused = Model::load(checkpoint, {.threads = 1, .next_tokens = true});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("the files have none"));
  Model model = must(Model::load(checkpoint, {.threads = 1}));
  const std::vector<int32_t> prompt = {1, 2};
  const auto none = generate(model, prompt, {.speculation = {.drafter = Drafter::kMtp}});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().place, "speculate");
}

TEST(NextTokens, RefusesOtherFamiliesByName) {
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder("minimax_m2")));
  const auto refused = Model::load(checkpoint, {.threads = 1, .next_tokens = true});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("the architecture is MiniMaxM2ForCausalLM"));
}

TEST(NextTokens, RefusesGgufFilesWithoutTheLayer) {
  const std::string models = testing::golden_dir() + "/gguf/models/";
  const auto error_of = [&](const char* file) {
    const Checkpoint checkpoint = must(Checkpoint::open(models + file));
    EXPECT_FALSE(has_next_tokens(checkpoint));
    const auto refused = Model::load(checkpoint, {.threads = 1, .next_tokens = true});
    return refused ? "accepted" : refused.error().to_string();
  };
  EXPECT_THAT(error_of("glm4moe-plain.gguf"), HasSubstr("the files have none"));
  EXPECT_THAT(error_of("minimax-m2.gguf"), HasSubstr("the architecture is MiniMaxM2"));
  EXPECT_TRUE(has_next_tokens(must(Checkpoint::open(models + "glm4moe.gguf"))));
}

// Drafts of the layer, which has no adapter, in texts of an adapter.
TEST(NextTokens, TextsOfAnAdapterEqualPlainDecoding) {
  const std::pair<const char*, const char*> pairs[] = {{"deepseek_v3", "latent_attention"},
                                                       {"qwen3_5_moe", "linear_attention"}};
  for (const auto& [name, adapter] : pairs) {
    const Checkpoint checkpoint = must(Checkpoint::open(folder_of(name)));
    Model model = must(
        Model::load(checkpoint, {.backend = testing::backend("cpu"),
                                 .threads = 2,
                                 .deterministic = true,
                                 .adapters = {str(testing::golden_dir(), "/adapters/", adapter)},
                                 .next_tokens = true}));
    int differ = 0, drafted = 0;
    for (int32_t first = 0; first < 5; ++first) {
      const std::vector<int32_t> prompt = {first, 4, 8, 2};
      GenerateOptions wanted{.max_tokens = 24};
      const Generation without = must(generate(model, prompt, wanted));
      wanted.adapter = 0;
      const Generation plain = must(generate(model, prompt, wanted));
      wanted.speculation = {.drafter = Drafter::kMtp, .max_drafts = 3, .adaptive = false};
      const Generation got = must(generate(model, prompt, wanted));
      EXPECT_EQ(got.ids, plain.ids) << name;
      differ += plain.ids != without.ids;
      drafted += static_cast<int>(got.speculation.drafted);
    }
    EXPECT_GT(differ, 0) << name;
    EXPECT_GT(drafted, 0) << name;
  }
}

TEST(NextTokens, RefusesReload) {
  const std::string folder = folder_of("glm4_moe");
  const Checkpoint checkpoint = must(Checkpoint::open(folder));
  Model model = must(Model::load(checkpoint, {.threads = 1, .next_tokens = true}));
  EXPECT_EQ(model.reload(checkpoint).error().place, "reload");
}

}  // namespace
}  // namespace moracle::next_tokens_test
