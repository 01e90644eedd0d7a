// Tests sequences with grammars in the engine: each equals a plain loop that masks all logits.
#include <limits>
#include <random>

#include "serve/engine_fixture.h"
#include "support/device.h"

namespace moracle::serve::engine_test {
namespace {

// Allows a random set of tokens after every text: one token, a few, or most.
class RandomGrammar final : public Grammar {
 public:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(uint64_t seed) : state_(seed) {}
    Status fill(TokenMask& mask) override {
      std::mt19937_64 random(state_);
      constexpr uint64_t kShares[] = {0, 1, 20, 500, 970, 1000};
      const uint64_t share = kShares[random() % std::size(kShares)];
      mask.allow_all();
      const auto size = static_cast<int32_t>(mask.words().size() * 32);
      const auto always = static_cast<int32_t>(random() % 256);  // never excluded
      for (int32_t id = 0; id < size; ++id) {
        if (id != always && random() % 1000 >= share) mask.forbid(id);
      }
      return {};
    }
    Status accept(int32_t id) override {
      state_ = state_ * 6364136223846793005U + static_cast<uint64_t>(id) + 1;
      return {};
    }

   private:
    uint64_t state_;
  };
  explicit RandomGrammar(uint64_t seed) : seed_(seed) {}
  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    return std::unique_ptr<GrammarMatcher>(std::make_unique<Matcher>(seed_));
  }

 private:
  const uint64_t seed_;
};

class EngineGrammars : public EngineOnSmallModel {
 protected:
  EngineGrammars() { options_.max_num_tokens = 128; }

  // The ids of a plain loop.
  static std::vector<int32_t> expected(Model& model, const Job& job) {
    const std::unique_ptr<GrammarMatcher> matcher = must(job.grammar->start());
    Sampler sampler(job.sampling);
    KvCache cache = must(model.make_cache(256));
    TokenMask mask(model.vocab_size());
    std::vector<int32_t> next = job.prompt, ids;
    while (std::cmp_less(ids.size(), job.max_tokens)) {
      const Model::Step step{next, &cache};
      must(model.forward({&step, 1}));
      const auto logits = must(model.logits(static_cast<int64_t>(next.size()) - 1, 1));
      must(matcher->fill(mask));
      std::vector<float> masked(logits.begin(), logits.end());
      for (size_t id = 0; id < masked.size(); ++id) {
        if (!mask.allows(static_cast<int32_t>(id)))
          masked[id] = -std::numeric_limits<float>::infinity();
      }
      ids.push_back(sampler.draw(masked).value());
      must(matcher->accept(ids.back()));
      next = {ids.back()};
    }
    return ids;
  }

  void texts_equal_plain_loop(Model& model, size_t num_jobs, int64_t max_tokens) {
    std::vector<std::vector<int32_t>> plain;
    const auto jobs = [&] {
      std::vector<Job> all;
      for (size_t i = 0; i < num_jobs; ++i) {
        all.push_back(
            job("And the LORD spake unto Moses" + std::string(i % 5, ','), max_tokens, i));
        Job& one = all.back();
        one.grammar = std::make_shared<RandomGrammar>(i);
        if (i % 3 != 0) one.sampling.top_p = 1;
        if (i % 3 == 1) one.sampling.temperature = 0;
        if (i % 3 == 2) one.sampling.top_k = 5 + 10 * static_cast<int64_t>(i % 4);
        if (i % 7 == 6) one.sampling.excluded_ids = {260, 261, 300, 301, 302};
        if (i % 8 == 7) one.num_top = 2;
      }
      return all;
    };
    for (const Job& one : jobs()) plain.push_back(expected(model, one));
    for (const int64_t drafts : {0, 0, 3}) {
      overlaps_answers_ = !overlaps_answers_;
      speculation_ = drafts > 0 ? always_drafting(drafts) : Speculation();
      const auto engine = start(model, 4 * static_cast<int64_t>(num_jobs), 64);
      std::vector<Waiting> waiting(num_jobs);
      std::vector<Job> all = jobs();
      for (size_t i = 0; i < num_jobs; ++i) {
        all[i].sink = waiting[i].sink();
        engine->submit({std::move(all[i])});
      }
      for (size_t i = 0; i < num_jobs; ++i) {
        TokenStream stream(tokenizer_);
        must(stream.follow(jobs()[i].prompt));
        std::string text;
        for (const int32_t id : plain[i]) text += must(stream.push(id));
        EXPECT_EQ(waiting[i].get().text, text + stream.finish()) << i << " " << drafts;
      }
    }
  }
};

TEST_F(EngineGrammars, TextsOf70SequencesEqualPlainLoop) {
  Model model = load();
  texts_equal_plain_loop(model, 70, 12);
}

// A device whose memory the host does not see: draws from the largest logits first.
TEST_F(EngineGrammars, TextsEqualPlainLoopOnOpenCl) {
  if (const auto device = testing::open_test_device("opencl"); !device)
    GTEST_SKIP() << device.error().to_string();
  options_.device = must(parse_device(testing::opencl_name()));
  Model model = load();
  texts_equal_plain_loop(model, 12, 12);
}

}  // namespace
}  // namespace moracle::serve::engine_test
