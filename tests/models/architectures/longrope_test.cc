// LongRoPE (Phi-3.5-MoE): a sequence that outgrows the original context turns all its keys by other
// frequencies, however it got there. The model has an original context of 12 tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::longrope_test {
namespace {

using testing::golden_folder;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::must;
using testing::relative_difference;

constexpr int64_t kShort = 12;

class LongRope : public ::testing::Test {
 protected:
  const std::vector<int32_t> ids_ = golden_reference("phimoe_long").ids;

  Model load(int64_t max_num_tokens) {
    return must(Model::load(must(Checkpoint::open(golden_folder("phimoe_long"))),
                            {.threads = 2, .max_num_tokens = max_num_tokens}));
  }
  static double close(const Model& model) {
    return testing::logit_bound(model.choices(), model.choices());
  }
  std::vector<float> step(Model& model, KvCache& cache, int64_t first, int64_t count) {
    const Model::Step step{std::span(ids_).subspan(first, count), &cache};
    const Status done = model.forward({&step, 1});
    EXPECT_TRUE(done) << done.error().to_string();
    const auto logits = must(model.logits(count - 1, 1));
    return {logits.begin(), logits.end()};
  }
  /// The last logits of the first `length` tokens, in one step.
  std::vector<float> fresh(Model& model, int64_t length) {
    KvCache cache = must(model.make_cache(length));
    return step(model, cache, 0, length);
  }
};

TEST_F(LongRope, EveryLengthMatchesOneStep) {
  Model model = load(19);
  // 5 tokens at a time need several parts to compute the sequence anew.
  Model small = load(5);
  KvCache one = must(model.make_cache(19)), few = must(small.make_cache(19));
  for (int64_t length = 1; length <= 19; ++length) {
    const std::vector<float> want = fresh(model, length);
    EXPECT_LT(relative_difference(step(model, one, length - 1, 1), want), close(model)) << length;
    EXPECT_LT(relative_difference(step(small, few, length - 1, 1), want), close(model)) << length;
  }
}

TEST_F(LongRope, FrequenciesDependOnLengthNotCapacity) {
  Model model = load(19);
  KvCache roomy = must(model.make_cache(200));
  EXPECT_LT(relative_difference(step(model, roomy, 0, kShort), fresh(model, kShort)), 1e-9);
  EXPECT_EQ(model.max_context(), 256);
}

TEST_F(LongRope, TruncatedSequenceIsShortAgain) {
  Model model = load(19);
  KvCache cache = must(model.make_cache(19));
  step(model, cache, 0, 15);
  ASSERT_TRUE(cache.truncate(kShort - 1));
  EXPECT_LT(relative_difference(step(model, cache, kShort - 1, 1), fresh(model, kShort)),
            close(model));
  // Long sequences that stay long keep their keys.
  step(model, cache, kShort, 4);
  ASSERT_TRUE(cache.truncate(14));
  EXPECT_LT(relative_difference(step(model, cache, 14, 1), fresh(model, 15)), close(model));
}

TEST_F(LongRope, ShortAndLongSequencesShareStep) {
  Model model = load(19);
  KvCache one = must(model.make_cache(19)), two = must(model.make_cache(19));
  step(model, one, 0, 12);
  step(model, two, 0, 3);
  const std::span<const int32_t> ids = ids_;
  const Model::Step steps[] = {{ids.subspan(12, 2), &one}, {ids.subspan(3, 2), &two}};
  ASSERT_TRUE(model.forward(steps));
  const auto logits = must(model.logits(0, 4));
  const auto vocabulary = static_cast<size_t>(model.vocab_size());
  const std::vector<float> all(logits.begin(), logits.end());
  const auto row = [&](size_t r) { return std::span(all).subspan(r * vocabulary, vocabulary); };
  EXPECT_LT(relative_difference(row(1), fresh(model, 14)), close(model));
  EXPECT_LT(relative_difference(row(3), fresh(model, 5)), close(model));
}

// The two sets of factors give other logits: the tests above are not blind to them.
TEST_F(LongRope, LongFactorsMatter) {
  Model model = load(19);
  testing::SyntheticCheckpoint other = testing::golden_model("phimoe_long");
  other.config["original_max_position_embeddings"] = 64;
  Model never = must(Model::load(must(other.open()), {.threads = 2}));
  EXPECT_LT(relative_difference(fresh(model, kShort), fresh(never, kShort)), 1e-9);
  EXPECT_GT(relative_difference(fresh(model, kShort + 1), fresh(never, kShort + 1)), 1e-3);
}

TEST_F(LongRope, PagesAreNotShared) {
  Model model = load(19);
  EXPECT_FALSE(ModelAccess::can_share_pages(model));
  KvCache cache = must(model.make_cache(19));
  step(model, cache, 0, 3);
  const auto shared = ModelAccess::make_cache(model, 19, ModelAccess::state(cache).pages);
  ASSERT_FALSE(shared);
  EXPECT_THAT(shared.error().to_string(), HasSubstr("without LongRoPE"));
}

}  // namespace
}  // namespace moracle::longrope_test
