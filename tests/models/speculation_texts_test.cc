// Compares many greedy texts with drafts with plain decoding, bit for bit, over all families and
// both drafters. MORACLE_TEST_TEXTS=10000 sets the number of texts; the default is a sample.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "golden_model.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::speculation_texts_test {
namespace {

using testing::must;

int64_t num_texts() {
  const char* const wanted = std::getenv("MORACLE_TEST_TEXTS");
  return wanted == nullptr ? 250 / testing::Sample::kStep
                           : std::max<int64_t>(std::atoll(wanted), 1);
}

struct Drafted {
  std::string path;
  Drafter drafter;
};

std::vector<Drafted> all_drafted() {
  std::vector<Drafted> all;
  for (const char* name : {"qwen3_moe", "gpt_oss", "gemma4", "llama4", "deepseek_v2", "minimax_m2",
                           "glm_moe_dsa_sparse", "mimo_v2_flash", "qwen3_next", "lfm2_moe"})
    all.push_back({testing::golden_folder(name), Drafter::kNgram});
  for (const char* folder : {"/next_tokens", "/gguf/next_tokens"}) {
    for (const auto& entry : std::filesystem::directory_iterator(testing::golden_dir() + folder))
      all.push_back({entry.path().string(), Drafter::kMtp});
  }
  return all;
}

// Random ids, or a run of them that repeats itself.
std::vector<int32_t> random_prompt(std::mt19937& engine, int64_t vocab_size) {
  std::uniform_int_distribution<int32_t> ids(0, static_cast<int32_t>(vocab_size) - 1);
  std::vector<int32_t> text(1 + engine() % 24);
  const size_t period = 1 + engine() % 12;
  for (size_t i = 0; i < text.size(); ++i) text[i] = i < period ? ids(engine) : text[i - period];
  return text;
}

TEST(SpeculationTexts, GreedyTextsEqualPlainDecoding) {
  const std::vector<Drafted> all = all_drafted();
  const auto each =
      (num_texts() + static_cast<int64_t>(all.size()) - 1) / static_cast<int64_t>(all.size());
  int64_t texts = 0, drafted = 0, accepted = 0;
  for (size_t m = 0; m < all.size(); ++m) {
    const bool by_layer = all[m].drafter == Drafter::kMtp;
    Model model =
        must(Model::load(must(Checkpoint::open(all[m].path)), {.backend = testing::backend("cpu"),
                                                               .threads = 1,
                                                               .deterministic = true,
                                                               .next_tokens = by_layer}));
    std::mt19937 engine(static_cast<uint32_t>(m));
    for (int64_t t = 0; t < each; ++t) {
      const std::vector<int32_t> prompt = random_prompt(engine, model.vocab_size());
      GenerateOptions options{
          .max_tokens = std::min<int64_t>(
              1 + engine() % 40, model.max_context() - static_cast<int64_t>(prompt.size()))};
      const Generation plain = must(generate(model, prompt, options));
      options.speculation = {.drafter = all[m].drafter,
                             .max_drafts = 1 + static_cast<int64_t>(engine() % 8),
                             .adaptive = engine() % 4 == 0};
      const Generation got = must(generate(model, prompt, options));
      ASSERT_EQ(got.ids, plain.ids) << all[m].path << ", text " << t;
      ASSERT_EQ(got.stop_reason, plain.stop_reason);
      ++texts;
      drafted += got.speculation.drafted;
      accepted += got.speculation.accepted;
    }
  }
  EXPECT_GE(texts, num_texts());
  EXPECT_GT(accepted, texts / 10);
  EXPECT_GT(drafted, accepted);
  RecordProperty("texts", std::to_string(texts));
  RecordProperty("accepted", std::to_string(accepted));
}

}  // namespace
}  // namespace moracle::speculation_texts_test
