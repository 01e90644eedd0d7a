// Tests generation with ids that must never be drawn, such as padding behind a vocabulary.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden_model.h"

namespace moracle::excluded_ids_test {
namespace {

TEST(ExcludedIds, AreNeverGeneratedNorAcceptedInPrompt) {
  const Checkpoint checkpoint = *Checkpoint::open(testing::golden_folder("qwen3_moe"));
  auto model = Model::load(checkpoint, {.threads = 2});
  ASSERT_TRUE(model) << model.error().to_string();
  const std::vector<int32_t> prompt = {1, 2, 3, 4};
  for (const SamplingOptions& sampling :
       {SamplingOptions{}, SamplingOptions{.temperature = 1, .top_k = 4},
        SamplingOptions{.temperature = 1}}) {
    GenerateOptions options{.max_tokens = 12, .sampling = sampling};
    const auto free = generate(*model, prompt, options);
    ASSERT_TRUE(free) << free.error().to_string();
    // Exclude what was drawn, except ids of the prompt.
    std::vector<int32_t>& excluded = options.sampling.excluded_ids;
    for (const int32_t id : free->ids) {
      if (std::find(prompt.begin(), prompt.end(), id) == prompt.end()) excluded.push_back(id);
    }
    std::sort(excluded.begin(), excluded.end());
    excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
    ASSERT_FALSE(excluded.empty());
    const auto other = generate(*model, prompt, options);
    ASSERT_TRUE(other) << other.error().to_string();
    EXPECT_EQ(other->ids.size(), 12u);
    for (const int32_t id : other->ids)
      EXPECT_FALSE(std::binary_search(excluded.begin(), excluded.end(), id)) << id;

    const std::vector<int32_t> wrong = {1, excluded[0]};
    const auto refused = generate(*model, wrong, options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(refused.error().place, "prompt");
  }
}

}  // namespace
}  // namespace moracle::excluded_ids_test
