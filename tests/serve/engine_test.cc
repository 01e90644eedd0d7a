// Compares the engine on a small model with generate() and perplexity().
#include <cmath>

#include "serve/engine_fixture.h"

namespace moracle::serve::engine_test {
namespace {

INSTANTIATE_TEST_SUITE_P(When, EngineWithOverlap,
                         ::testing::Values(EngineMode{false, 0}, EngineMode{true, 0},
                                           EngineMode{false, 4}, EngineMode{true, 3}),
                         [](const auto& mode) {
                           return std::string(mode.param.overlaps ? "DuringTheNextStep"
                                                                  : "BeforeTheNextStep") +
                                  (mode.param.drafts > 0 ? "WithDrafts" : "");
                         });

// With few pages, sequences share prefixes and are preempted. Texts must not change.
TEST_P(EngineWithOverlap, TextsMatchGenerateUnderCachePressure) {
  Model model = load(), alone = load();
  const auto engine = start(model, 6);
  constexpr int kJobs = 16;
  std::vector<Waiting> waiting(kJobs);
  std::vector<Job> jobs;
  for (int i = 0; i < kJobs; ++i) {
    jobs.push_back(job(long_prompt(i % 3 == 0 ? 25 : 8, i % 2), 40, i));
    jobs.back().sink = waiting[i].sink();
    engine->submit({jobs.back()});
  }
  for (int i = 0; i < kJobs; ++i) {
    const Text made = waiting[i].get();
    EXPECT_EQ(made.last.finish, Finish::kLength) << made.last.message;
    EXPECT_EQ(made.text, expected(alone, jobs[i])) << i;
  }
  const Gauges gauges = engine->metrics().gauges();
  EXPECT_GT(gauges.reused_tokens, 0);
  EXPECT_TRUE(engine->drain(60));
}

TEST_P(EngineWithOverlap, PreemptedSequencesContinueTheirText) {
  Model model = load(), alone = load();
  const auto engine = start(model, 3);
  std::vector<Waiting> waiting(4);
  std::vector<Job> jobs;
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(job(long_prompt(9, 100 * i), 120, i));  // each grows to a second page
    ASSERT_LT(jobs.back().prompt.size(), 256u);
    ASSERT_GT(jobs.back().prompt.size(), 160u);
    jobs.back().sink = waiting[i].sink();
    engine->submit({jobs.back()});
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(waiting[i].get().text, expected(alone, jobs[i])) << i;
  EXPECT_TRUE(engine->drain(60));
  EXPECT_GT(engine->metrics().gauges().preemptions, 0);
}

TEST_P(EngineWithOverlap, ChoicesSharePromptPages) {
  Model model = load(), alone = load();
  const auto engine = start(model, 40);
  std::vector<Waiting> waiting(3);
  std::vector<Job> choices;
  for (int i = 0; i < 3; ++i) {
    choices.push_back(job(long_prompt(25), 12, i));
    choices.back().sink = waiting[i].sink();
  }
  const std::vector<Job> jobs = choices;
  engine->submit(std::move(choices));
  for (int i = 0; i < 3; ++i) {
    const Text made = waiting[i].get();
    EXPECT_EQ(made.text, expected(alone, jobs[i]));
    const auto pages = static_cast<int64_t>(jobs[i].prompt.size() - 1) / engine->page();
    EXPECT_EQ(made.last.reused_tokens, i == 0 ? 0 : pages * engine->page());
  }
}

TEST_P(EngineWithOverlap, PromptScoresMatchPerplexity) {
  Model model = load(), alone = load();
  const auto engine = start(model, 8);
  const Job text = job(long_prompt(12), 0);
  double nll = 0;
  for (const int64_t max_tokens : {0, 1}) {
    Waiting waiting;
    Job scored = text;
    scored.max_tokens = max_tokens;
    scored.num_top = 1;
    scored.scores_prompt = true;
    scored.sink = waiting.sink();
    engine->submit({scored});
    const Text made = waiting.get();
    ASSERT_EQ(made.of_prompt.size(), text.prompt.size() - 1);
    EXPECT_EQ(made.last.new_tokens, max_tokens);
    nll = 0;
    for (size_t i = 0; i < made.of_prompt.size(); ++i) {
      EXPECT_EQ(made.of_prompt[i].id, text.prompt[i + 1]);
      nll -= made.of_prompt[i].log_probability;
    }
  }
  const Perplexity whole =
      must(perplexity(alone, text.prompt, static_cast<int64_t>(text.prompt.size())));
  EXPECT_NEAR(nll / static_cast<double>(whole.scored_tokens), whole.nll, 1e-5);
}

TEST_P(EngineWithOverlap, CancelledJobsFreePages) {
  Model model = load();
  const auto engine = start(model, 8);
  std::promise<void> first;
  Job endless = job("And", 1000);
  bool told = false;
  endless.sink = [&](Event&&) {
    if (!std::exchange(told, true)) first.set_value();
  };
  const std::vector<SequenceId> ids = engine->submit({endless});
  first.get_future().get();
  engine->cancel(ids[0]);
  engine->cancel(12345);
  EXPECT_TRUE(engine->drain(60));
  EXPECT_EQ(engine->metrics().gauges().running, 0);
  EXPECT_EQ(engine->metrics().gauges().pages_in_use, 0);
}

TEST_F(EngineOnSmallModel, TimeLimitEndsJob) {
  Model model = load();
  const auto engine = start(model, 8);
  Waiting waiting;
  Job slow = job("And", 1500);
  slow.time_limit = 0.05;
  slow.sink = waiting.sink();
  engine->submit({slow});
  EXPECT_EQ(waiting.get().last.finish, Finish::kTimeout);
}

TEST_P(EngineWithOverlap, ReloadWaitsForRunningSequences) {
  Model model = load(), alone = load();
  const auto engine = start(model, 8);
  Waiting before, after;
  Job one = job("And the LORD", 60, 1), two = job("And the LORD", 10, 2);
  one.sink = before.sink();
  two.sink = after.sink();
  engine->submit({one});
  std::promise<bool> reloaded, refused;
  engine->reload(kFolder, [&](const Status& done) { reloaded.set_value(done.ok()); });
  engine->reload("/nothing/there", [&](const Status& done) { refused.set_value(!done.ok()); });
  engine->submit({two});
  EXPECT_EQ(before.get().text, expected(alone, one));
  EXPECT_TRUE(reloaded.get_future().get());
  EXPECT_TRUE(refused.get_future().get());
  EXPECT_EQ(after.get().text, expected(alone, two));
}

TEST_F(EngineOnSmallModel, RejectsJobsBeyondCacheOrQueue) {
  Model model = load();
  Waiting waiting;
  const auto engine = start(model, 1);
  Job large = job("And", 1500);
  large.sink = waiting.sink();
  engine->submit({large});
  EXPECT_EQ(waiting.get().last.finish, Finish::kTooLong);
  EXPECT_FALSE(Engine::start(model, tokenizer_, {.cache_bytes = 1}).ok());
  EXPECT_FALSE(Engine::start(model, tokenizer_, {.max_running = 65, .cache_bytes = 1 << 30}).ok());
}

TEST_F(EngineOnSmallModel, StopNotifiesUnfinishedJobs) {
  Model model = load();
  Waiting waiting;
  auto engine = start(model, 8);
  Job endless = job("And", 1000);
  endless.sink = waiting.sink();
  engine->submit({endless});
  engine.reset();
  EXPECT_EQ(waiting.get().last.finish, Finish::kStopping);
}

}  // namespace
}  // namespace moracle::serve::engine_test
