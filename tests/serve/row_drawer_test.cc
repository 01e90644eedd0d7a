// Tests draws under a grammar's mask: each must equal the draw from logits in which forbidden
// tokens are negative infinity.
#include "serve/engine/row_drawer.h"
#include "paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/cpu/ops/top_k.h"
#include "support/must.h"

namespace moracle::serve::row_drawer_test {
namespace {

using testing::must;

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Allows the ids of one list at every step.
class FixedGrammar final : public Grammar {
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(std::vector<bool> allowed) : allowed_(std::move(allowed)) {}
    Status fill(TokenMask& mask) override {
      mask.allow_all();
      for (size_t id = 0; id < allowed_.size(); ++id) {
        if (!allowed_[id]) mask.forbid(static_cast<int32_t>(id));
      }
      return {};
    }
    Status accept(int32_t) override { return {}; }

   private:
    const std::vector<bool> allowed_;
  };

 public:
  explicit FixedGrammar(std::vector<bool> allowed) : allowed_(std::move(allowed)) {}
  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    return std::unique_ptr<GrammarMatcher>(std::make_unique<Matcher>(allowed_));
  }

 private:
  const std::vector<bool> allowed_;
};

std::vector<bool> random_mask(size_t size, std::mt19937_64& random) {
  constexpr double kShares[] = {0, 0.002, 0.05, 0.5, 0.97, 1};
  std::bernoulli_distribution allows(kShares[random() % std::size(kShares)]);
  std::vector<bool> allowed(size);
  for (size_t id = 0; id < size; ++id) allowed[id] = allows(random);
  if (std::none_of(allowed.begin(), allowed.end(), [](bool one) { return one; }))
    allowed[random() % size] = true;
  return allowed;
}

TEST(TokenMask, EqualsPlainMask) {
  std::mt19937_64 random(1);
  for (const size_t size : {1, 31, 32, 33, 64, 1000, 4095}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const std::vector<bool> allowed = random_mask(size, random);
      TokenMask mask(static_cast<int64_t>(size));
      std::vector<float> logits(size), plain(size), masked(size);
      std::vector<int32_t> ids, listed;
      for (uint32_t& word : mask.words()) word = ~uint32_t{0};  // above the vocabulary, too
      for (size_t id = 0; id < size; ++id) {
        logits[id] = static_cast<float>(random() % 1000);
        plain[id] = allowed[id] ? logits[id] : kNever;
        if (allowed[id]) ids.push_back(static_cast<int32_t>(id));
        if (!allowed[id]) mask.forbid(static_cast<int32_t>(id));
      }
      mask.settle();
      mask.copy(logits, masked);
      mask.list(listed);
      EXPECT_EQ(masked, plain);
      EXPECT_EQ(listed, ids);
      EXPECT_EQ(mask.num_allowed(), static_cast<int64_t>(ids.size()));
      EXPECT_EQ(mask.allows_all(), ids.size() == size);
      for (size_t id = 0; id < size; ++id)
        EXPECT_EQ(mask.allows(static_cast<int32_t>(id)), allowed[id]);
      EXPECT_FALSE(mask.allows(-1));
      EXPECT_FALSE(mask.allows(static_cast<int32_t>(size)));
      mask.copy(logits, logits);
      EXPECT_EQ(logits, plain);
    }
  }
}

SamplingOptions random_options(std::mt19937_64& random, size_t size) {
  const auto one_in = [&](uint64_t count) { return random() % count == 0; };
  SamplingOptions options{.temperature = one_in(3) ? 0.F : 0.7F, .seed = random()};
  if (one_in(2)) options.top_k = 1 + static_cast<int64_t>(random() % 90);
  if (one_in(3)) options.top_p = 0.8F;
  if (one_in(4)) options.min_p = 0.1F;
  if (one_in(5)) options.typical_p = 0.6F;
  if (one_in(5)) options.xtc_probability = 0.5F, options.xtc_threshold = 0.05F;
  if (one_in(3)) {
    for (int32_t id = 0; std::cmp_less(id, size); ++id)
      if (one_in(7)) options.excluded_ids.push_back(id);
  }
  return options;
}

class RowDrawers : public ::testing::Test {
 protected:
  const Tokenizer tokenizer_ =
      must(Tokenizer::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
};

TEST_F(RowDrawers, DrawsEqualThoseFromMaskedLogits) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal(0, 4);
  RowDrawer drawer;
  cpu::TopK top_k;
  int from_largest = 0, not_drawn = 0;
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const size_t size = repeat % 2 == 0 ? 40 + random() % 60 : 2000 + random() % 100;
    const auto vocab_size = static_cast<int64_t>(size);
    const std::vector<bool> allowed = random_mask(size, random);
    Job job;
    job.sampling = random_options(random, size);
    job.grammar = std::make_shared<FixedGrammar>(allowed);
    if (random() % 8 == 0) job.edits.presence_penalty = 1;
    Sampler plain(job.sampling);
    Sequence sequence = must(Sequence::make(job, tokenizer_, vocab_size));
    for (int step = 0; step < 4; ++step) {
      std::vector<float> logits(size);
      for (float& logit : logits) logit = normal(random);
      if (random() % 4 == 0)  // ties
        for (float& logit : logits) logit = std::round(logit);
      if (random() % 20 == 0) logits[random() % size] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> masked = logits;
      for (size_t id = 0; id < size; ++id)
        if (!allowed[id]) masked[id] = kNever;
      const auto expected = plain.draw(masked);
      std::optional<DrawnToken> drawn;
      if (const int64_t count = RowDrawer::candidates(sequence, vocab_size); count > 0) {
        // The device may have applied the mask, else it selects more.
        const std::vector<float>& from = random() % 2 == 0 ? masked : logits;
        const int64_t most =
            std::min<int64_t>(count + static_cast<int64_t>(random() % 64), vocab_size);
        std::vector<int32_t> ids(static_cast<size_t>(most));
        top_k.find(from, ids);
        std::vector<float> largest;
        for (const int32_t id : ids) largest.push_back(from[static_cast<size_t>(id)]);
        drawn = drawer.draw(sequence, {ids, largest}, vocab_size);
      }
      from_largest += drawn.has_value();
      if (!drawn) drawn = drawer.draw(sequence, logits);
      must(drawn->status);
      not_drawn += !expected;
      if (expected)
        ASSERT_EQ(drawn->id, *expected) << repeat << " " << step;
      else
        ASSERT_LT(drawn->id, 0) << repeat << " " << step;
    }
  }
  EXPECT_GT(from_largest, 1000);
  EXPECT_GT(not_drawn, 10);
}

TEST_F(RowDrawers, EmptyMaskIsReportedAtEveryDraw) {
  Job job;
  job.grammar = std::make_shared<FixedGrammar>(std::vector<bool>(50));
  job.grammar_place = "response_format";
  Sequence sequence = must(Sequence::make(job, tokenizer_, 50));
  RowDrawer drawer;
  const std::vector<float> logits(50);
  for (int i = 0; i < 2; ++i) {
    const DrawnToken drawn = drawer.draw(sequence, logits);
    ASSERT_FALSE(drawn.status.ok());
    EXPECT_EQ(drawn.status.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(drawn.status.error().place, "response_format");
  }
}

TEST_F(RowDrawers, BudgetForcesItsTokensAndScoresCountAllLogits) {
  Job job;
  job.sampling.temperature = 0;
  job.reasoning = ReasoningLimit{"<think>", "</think>", {7}, true, 0};
  Sequence sequence = must(Sequence::make(job, tokenizer_, 50));
  RowDrawer drawer;
  std::vector<float> logits(50);
  logits[3] = 5;
  EXPECT_EQ(RowDrawer::candidates(sequence, 50), 1);
  const int32_t id = 3;
  const auto forced = drawer.draw(sequence, {{&id, 1}, {&logits[3], 1}}, 50);
  ASSERT_TRUE(forced);
  EXPECT_EQ(forced->id, 7);
  sequence.job.num_top = 1;
  EXPECT_EQ(RowDrawer::candidates(sequence, 50), 0);
  const DrawnToken drawn = drawer.draw(sequence, logits);
  EXPECT_EQ(drawn.id, 7);
  ASSERT_EQ(drawn.scores.size(), 1U);
  EXPECT_FLOAT_EQ(drawn.scores[0].log_probability, -std::log(std::exp(5.F) + 49));
  EXPECT_EQ(drawn.scores[0].top[0].first, 3);
}

}  // namespace
}  // namespace moracle::serve::row_drawer_test
