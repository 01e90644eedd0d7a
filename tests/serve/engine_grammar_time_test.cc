// The time limit of a grammar counts its processor time, not the time that others take.
#include <gmock/gmock.h>
#include <time.h>

#include <chrono>
#include <functional>
#include <thread>

#include "serve/engine_fixture.h"

namespace moracle::serve::engine_test {
namespace {

using ::testing::HasSubstr;

// Allows all tokens, after some work.
class TimedGrammar final : public Grammar {
 public:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(const std::function<void()>& work) : work_(work) {}
    Status fill(TokenMask& mask) override {
      work_();
      mask.allow_all();
      return {};
    }
    Status accept(int32_t) override { return {}; }

   private:
    const std::function<void()>& work_;
  };
  explicit TimedGrammar(std::function<void()> work) : work_(std::move(work)) {}
  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    return std::unique_ptr<GrammarMatcher>(std::make_unique<Matcher>(work_));
  }

 private:
  const std::function<void()> work_;
};

// As on a machine where other programs take the cores in the middle of each fill.
void starved_fill() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

void busy_fill() {
  const auto spent = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  for (const double end = spent() + 0.3; spent() < end;) {
  }
}

class GrammarTime : public EngineOnSmallModel {
 protected:
  Text text(std::function<void()> work) {
    Model model = load();
    const auto engine = start(model, 16);
    Waiting slow, other;
    Job with = job("And the LORD spake", 10);
    with.grammar = std::make_shared<TimedGrammar>(std::move(work));
    with.grammar_place = "guided_grammar";
    with.sink = slow.sink();
    Job without = job("In the beginning", 10);
    without.sink = other.sink();
    engine->submit({std::move(with)});
    engine->submit({std::move(without)});
    EXPECT_EQ(other.get().last.new_tokens, 10);
    return slow.get();
  }
};

TEST_F(GrammarTime, StarvedGrammarDoesNotFail) {
  const Text got = text(starved_fill);  // 3 s, of which 2.2 s are the limit
  EXPECT_EQ(got.last.finish, Finish::kLength) << got.last.message;
  EXPECT_EQ(got.last.new_tokens, 10);
}

TEST_F(GrammarTime, SlowGrammarFailsWithCountsAndReason) {
  const Text got = text(busy_fill);
  EXPECT_EQ(got.last.finish, Finish::kForbidden);
  EXPECT_THAT(got.last.message, HasSubstr("guided_grammar"));
  EXPECT_THAT(got.last.message, HasSubstr("s of a core"));
  EXPECT_LE(got.last.new_tokens, 8);  // 8 · 0.3 > 2 + 8 · 0.02
  EXPECT_GE(got.last.new_tokens, 1);
  EXPECT_GT(got.last.prompt_tokens, 0);
}

}  // namespace
}  // namespace moracle::serve::engine_test
