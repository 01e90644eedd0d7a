// Tests speculative decoding: drafts change how many steps a text takes, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "golden_model.h"
#include "models/decoder/model_state.h"
#include "models/speculation/draft_control.h"
#include "models/speculation/ngram_drafter.h"
#include "support/must.h"

namespace moracle::speculation_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::must;

std::vector<int32_t> drafts_after(const std::vector<int32_t>& text, int64_t most) {
  NgramDrafter drafter;
  std::vector<int32_t> drafts;
  for (size_t count = 1; count <= text.size(); ++count)  // also where it grows token by token
    drafter.follow(std::span(text).first(count));
  drafter.draft(most, drafts);
  return drafts;
}

TEST(NgramDrafter, ContinuesLatestOccurrenceOfTheLongestRun) {
  EXPECT_THAT(drafts_after({1, 2, 3, 4, 9, 1, 2, 3}, 2), ElementsAre(4, 9));
  EXPECT_THAT(drafts_after({1, 2, 5, 8, 1, 2, 6, 8, 1, 2}, 1), ElementsAre(6));
  // Three equal tokens decide before two later ones.
  EXPECT_THAT(drafts_after({7, 1, 2, 5, 1, 2, 6, 7, 1, 2}, 1), ElementsAre(5));
}

TEST(NgramDrafter, RepeatedTextGoesOnBeyondItsEnd) {
  EXPECT_THAT(drafts_after({1, 2, 3, 1, 2, 3, 1, 2}, 7), ElementsAre(3, 1, 2, 3, 1, 2, 3));
  EXPECT_THAT(drafts_after({5, 5, 5}, 3), ElementsAre(5, 5, 5));
}

TEST(NgramDrafter, NewTextGivesNoDrafts) {
  EXPECT_THAT(drafts_after({1, 2, 3, 4, 5, 1}, 4), IsEmpty());
  EXPECT_THAT(drafts_after({1}, 4), IsEmpty());
}

// A text of `tokens` tokens whose steps of n tokens take 1 + slope · (n - 1).
struct Simulated {
  double seconds = 0;
  int64_t last_draft = 0, drafted = 0;
};
// `noise`: of the logarithm of measured times, as other programs cause it.
Simulated simulate(double slope, double acceptance, int64_t tokens, DraftControl& control,
                   StepCosts& costs, double noise = 0, uint32_t seed = 3) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform;
  std::normal_distribution<double> normal;
  Simulated all;
  for (int64_t at = 0; at < tokens;) {
    const int64_t drafts = control.wanted(costs, {}, 8);
    int64_t accepted = 0;
    while (accepted < drafts && uniform(engine) < acceptance) ++accepted;
    const double seconds = 1 + slope * static_cast<double>(drafts);
    costs.measured(1 + drafts, noise > 0 ? seconds * std::exp(noise * normal(engine)) : seconds);
    control.stepped(drafts, accepted, costs.seconds(1 + drafts) / costs.seconds(1) - 1);
    at += 1 + accepted;
    all.seconds += seconds;
    all.drafted += drafts;
    if (drafts > 0) all.last_draft = at;
  }
  return all;
}

TEST(DraftControl, RejectedDraftsCostLittleAndEndSoon) {
  for (const double slope : {0.02, 0.1, 0.3, 0.7, 1.0}) {
    DraftControl control;
    StepCosts costs;
    const Simulated first = simulate(slope, 0, 64, control, costs);
    const Simulated all = simulate(slope, 0, 448, control, costs);
    EXPECT_LE(first.seconds + all.seconds, 1.03 * 512) << slope;
    if (slope >= 0.3) {
      EXPECT_LE(all.drafted, 24) << slope;  // probes
    }
  }
}

// Mean of 40 texts.
TEST(DraftControl, RejectedDraftsCostLittleOnBusyMachines) {
  for (const double slope : {0.02, 0.1, 0.2, 0.4}) {
    for (const double noise : {0.2, 0.5, 1.0}) {
      double seconds = 0;
      for (uint32_t seed = 0; seed < 40; ++seed) {
        DraftControl control;
        StepCosts costs;
        seconds += simulate(slope, 0, 512, control, costs, noise, seed).seconds / 40;
      }
      EXPECT_LE(seconds, 1.03 * 512) << slope << ", noise " << noise;
    }
  }
}

TEST(DraftControl, AcceptedDraftsAreWorthTheirSteps) {
  DraftControl control;
  StepCosts costs;
  EXPECT_LE(simulate(0.05, 0.7, 512, control, costs).seconds, 512 / 1.9);
  DraftControl dear;
  StepCosts dear_costs;
  EXPECT_LE(simulate(0.9, 0.5, 512, dear, dear_costs).seconds, 1.03 * 512);
}

TEST(DraftControl, DraftsAgainWhenTheTextChanges) {
  DraftControl control;
  StepCosts costs;
  simulate(0.3, 0, 300, control, costs);
  EXPECT_LE(simulate(0.3, 0.95, 300, control, costs).seconds, 300 / 1.5);
}

TEST(StepCosts, InterpolatesBetweenMeasuredSizes) {
  StepCosts costs;
  EXPECT_EQ(costs.seconds(1), 0);
  costs.measured(1, 10);
  EXPECT_NEAR(costs.seconds(3), 12, 1e-9);
  costs.measured(5, 30);
  EXPECT_NEAR(costs.seconds(3), 20, 1e-9);
  costs.measured(1, 1);  // the first step was slow
  EXPECT_NEAR(costs.seconds(1), 1, 1e-9);
}

// Models with windows, chunks, MLA, sparse attention, recurrent layers and LongRoPE.
constexpr const char* kModels[] = {
    "qwen3_moe",     "gpt_oss",    "gemma4",      "llama4",   "deepseek_v2", "glm_moe_dsa_sparse",
    "mimo_v2_flash", "qwen3_next", "qwen3_5_moe", "lfm2_moe", "phimoe_long"};

class SpeculationOf : public ::testing::TestWithParam<const char*> {
 protected:
  SpeculationOf()
      : checkpoint_(must(Checkpoint::open(testing::golden_folder(GetParam())))),
        model_(must(Model::load(
            checkpoint_,
            {.backend = testing::backend("cpu"), .threads = 2, .deterministic = true}))) {}

  // A text that repeats itself with gaps.
  std::vector<int32_t> prompt(uint32_t seed) const {
    std::mt19937 engine(seed);
    std::uniform_int_distribution<int32_t> ids(0, static_cast<int32_t>(model_.vocab_size()) - 1);
    std::vector<int32_t> some(3 + seed % 4), text;
    for (int32_t& id : some) id = ids(engine);
    for (int i = 0; i < 3; ++i) {
      text.insert(text.end(), some.begin(), some.end());
      if (i < 2) text.push_back(ids(engine));
    }
    return text;
  }
  int64_t context_after(size_t prompt) const {
    return std::min<int64_t>(40, model_.max_context() - static_cast<int64_t>(prompt));
  }

  const Checkpoint checkpoint_;
  Model model_;
};
INSTANTIATE_TEST_SUITE_P(Models, SpeculationOf, ::testing::ValuesIn(kModels),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(SpeculationOf, TextsEqualPlainDecoding) {
  int64_t accepted = 0, rejected = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const std::vector<int32_t> text = prompt(seed);
    GenerateOptions options{.max_tokens = context_after(text.size())};
    if (seed % 3 != 0) options.sampling = {.temperature = 0.2F * (seed % 4), .seed = seed};
    if (seed % 3 == 2) options.sampling.top_k = 5;
    if (seed % 4 == 3) options.edits = {.repetition_penalty = 1.05F, .min_tokens = 9};
    if (seed % 5 == 4) options.stop_ids = {1, 2, 3, 4};
    if (seed % 6 == 5) options.sampling.excluded_ids = {0, 7};
    if (seed % 6 == 5 &&
        std::count(text.begin(), text.end(), 0) + std::count(text.begin(), text.end(), 7) > 0)
      continue;
    const Generation plain = must(generate(model_, text, options));
    for (const int64_t drafts : {1, 3, 8}) {
      options.speculation = {.drafter = Drafter::kNgram, .max_drafts = drafts, .adaptive = false};
      const Generation got = must(generate(model_, text, options));
      EXPECT_EQ(got.ids, plain.ids) << "seed " << seed << ", " << drafts << " drafts";
      EXPECT_EQ(got.stop_reason, plain.stop_reason);
      accepted += got.speculation.accepted;
      rejected += got.speculation.drafted - got.speculation.accepted;
      options.speculation.adaptive = true;
      EXPECT_EQ(must(generate(model_, text, options)).ids, plain.ids);
      options.speculation = {};
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(rejected, 0);
}

// The answer may end within accepted drafts. A kept sequence goes on from there.
TEST_P(SpeculationOf, CancelledTextLeavesAWholeSequence) {
  const std::vector<int32_t> text = prompt(1);
  GenerateOptions options{.max_tokens = context_after(text.size()) / 2};
  const Generation plain = must(generate(model_, text, options));
  options.speculation = {.drafter = Drafter::kNgram, .max_drafts = 5, .adaptive = false};
  for (size_t end = 1; end < plain.ids.size(); ++end) {
    KeptSequence kept{must(model_.make_cache(
        std::min<int64_t>(static_cast<int64_t>(text.size()) + 40, model_.max_context())))};
    options.kept = &kept;
    size_t count = 0;
    options.on_token = [&](int32_t) { return ++count < end; };
    const Generation got = must(generate(model_, text, options));
    EXPECT_EQ(got.stop_reason, "cancelled");
    ASSERT_EQ(got.ids, std::vector(plain.ids.begin(), plain.ids.begin() + end)) << end;
    ASSERT_EQ(static_cast<int64_t>(kept.ids.size()), kept.cache.length());
    options.on_token = {};
    EXPECT_EQ(must(generate(model_, text, options)).ids, plain.ids) << end;
  }
}

// Texts of four ids: drafts are often right. Each text has a seed of its own.
TEST(Speculation, SampledTokensHaveThePlainDistribution) {
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder("qwen3_moe")));
  Model model = must(Model::load(checkpoint, {.backend = testing::backend("cpu"), .threads = 1}));
  constexpr uint64_t kTexts = 2000;
  constexpr int32_t kFirst = 3, kIds = 4;
  GenerateOptions options{.max_tokens = 4, .sampling = {.temperature = 12}};
  for (int32_t id = 0; id < model.vocab_size(); ++id) {
    if (id < kFirst || id >= kFirst + kIds) options.edits.suppress_tokens.push_back(id);
  }
  const std::vector<int32_t> prompt = {3, 4, 5, 6, 3, 5, 4, 6, 3, 4};
  SpeculationCounts drafts;
  // Counts the runs of the last three tokens.
  const auto counts = [&](uint64_t first_seed) {
    std::vector<double> runs(kIds * kIds * kIds);
    for (uint64_t seed = first_seed; seed < first_seed + kTexts; ++seed) {
      options.sampling.seed = seed;
      const Generation got = must(generate(model, prompt, options));
      int32_t run = 0;
      for (int i = 1; i < 4; ++i) run = run * kIds + got.ids[i] - kFirst;
      ++runs[static_cast<size_t>(run)];
      drafts.drafted += got.speculation.drafted;
      drafts.accepted += got.speculation.accepted;
    }
    return runs;
  };
  const std::vector<double> plain = counts(1);
  options.speculation = {.drafter = Drafter::kNgram, .max_drafts = 3, .adaptive = false};
  const std::vector<double> drafted = counts(1'000'000);
  EXPECT_GT(drafts.accepted, 200);
  EXPECT_GT(drafts.drafted, drafts.accepted + 200);
  double chi_square = 0, degrees = -1;
  for (size_t run = 0; run < plain.size(); ++run) {
    const double sum = plain[run] + drafted[run];
    if (sum < 10) continue;
    chi_square += std::pow(plain[run] - drafted[run], 2) / sum;
    ++degrees;
  }
  EXPECT_GT(degrees, 20);
  // Five standard deviations above the mean of the χ² distribution.
  EXPECT_LE(chi_square, degrees + 5 * std::sqrt(2 * degrees));
}

TEST(Speculation, RefusesUnknownDraftersAndCounts) {
  EXPECT_EQ(parse_drafter("draft").error().to_string(),
            "speculate: needs off, ngram, mtp or auto; it is 'draft'");
  EXPECT_EQ(check(Speculation{.max_drafts = 33}).error().to_string(),
            "max_drafts: needs 1 to 32 tokens; it is 33");
}

}  // namespace
}  // namespace moracle::speculation_test
