// Tests drafts in the engine: sequences of one step verify different numbers of them.
#include <gmock/gmock.h>
#include <time.h>

#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "parallel/ranks_of_threads.h"
#include "serve/engine/ranks/follow.h"
#include "serve/engine_fixture.h"
#include "serve/served_ranks.h"

namespace moracle::serve::engine_test {
namespace {

// Allows only every third id, counted on from the last one.
class ThirdIds final : public Grammar {
 public:
  class Matcher final : public GrammarMatcher {
   public:
    Status fill(TokenMask& mask) override {
      mask.allow_all();
      const auto size = static_cast<int32_t>(mask.words().size() * 32);
      for (int32_t id = 0; id < size; ++id) {
        if (id % 3 != next_) mask.forbid(id);
      }
      return {};
    }
    Status accept(int32_t id) override {
      if (id % 3 != next_)
        return Error{ErrorKind::kInvalidArgument, "", "id", "an allowed id", std::to_string(id)};
      next_ = (next_ + 1) % 3;
      return {};
    }

   private:
    int32_t next_ = 0;
  };
  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    return std::unique_ptr<GrammarMatcher>(std::make_unique<Matcher>());
  }
};

// A grammar whose matcher takes longer with every token, as ambiguous ones do.
class SlowGrammar final : public Grammar {
  class Matcher final : public GrammarMatcher {
   public:
    Status fill(TokenMask& mask) override {
      const auto thread_ms = [] {
        timespec now{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return now.tv_sec * 1000 + now.tv_nsec / 1000000;
      };
      const auto begin = thread_ms();
      while (thread_ms() - begin < 400) mask.allow_all();
      return {};
    }
    Status accept(int32_t) override { return {}; }
  };

 public:
  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    return std::unique_ptr<GrammarMatcher>(std::make_unique<Matcher>());
  }
};

// "name value" of a metric; -1: there is none.
double metric(const Engine& engine, const std::string& name) {
  const std::string text = const_cast<Engine&>(engine).metrics().text();
  const size_t at = text.find("\n" + name + " ");
  return at == text.npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

class EngineSpeculation : public EngineOnSmallModel {
 protected:
  // Jobs of every kind: greedy and sampled, edited, constrained, scored, stopped.
  std::vector<Job> mixed_jobs() const {
    std::vector<Job> jobs;
    for (int i = 0; i < 14; ++i) {
      Job one = job(i % 2 == 0 ? long_prompt(2, i) : "And the LORD spake unto Moses, saying,",
                    20 + 7 * (i % 5), i);
      if (i % 3 == 0) one.sampling.temperature = 0;
      if (i % 3 == 1) one.sampling.top_k = 40;
      if (i % 5 == 1) one.edits = {.repetition_penalty = 1.1F, .no_repeat_ngram_size = 4};
      if (i % 5 == 2) one.grammar = std::make_shared<ThirdIds>();
      if (i % 5 == 3) one.num_top = 3;
      if (i % 7 == 5) one.stop_strings = {"LORD", "Moses"};
      jobs.push_back(std::move(one));
    }
    return jobs;
  }
  struct Made {
    std::string text;
    Finish finish = Finish::kNone;
    int64_t new_tokens = 0;
    std::vector<TokenScore> scores;
  };
  std::vector<Made> run(Engine& engine, std::vector<Job> jobs) const {
    std::vector<Made> made(jobs.size());
    std::vector<std::promise<void>> ends(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].sink = [&made, &ends, i](Event&& event) {
        made[i].text += event.text;
        for (TokenScore& score : event.scores) made[i].scores.push_back(std::move(score));
        if (event.finish == Finish::kNone) return;
        made[i].finish = event.finish;
        made[i].new_tokens = event.new_tokens;
        ends[i].set_value();
      };
      engine.submit({std::move(jobs[i])});
    }
    for (auto& end : ends) end.get_future().get();
    return made;
  }
};

TEST_F(EngineSpeculation, GrammarThatTakesTooLongEndsItsSequenceAlone) {
  Model model = load();
  std::vector<Job> jobs;
  for (int i = 0; i < 2; ++i) {
    jobs.push_back(job("And the LORD spake unto Moses, saying,", 40, i));
    jobs.back().sampling.temperature = 0;
    jobs.back().stop_ids = {};
  }
  jobs[0].grammar = std::make_shared<SlowGrammar>();
  const std::vector<Made> made = run(*start(model, 60), std::move(jobs));
  EXPECT_EQ(made[0].finish, Finish::kForbidden);
  EXPECT_LT(made[0].new_tokens, 40);
  EXPECT_EQ(made[1].new_tokens, 40);
}

TEST_F(EngineSpeculation, MixedSequencesEqualPlainDecoding) {
  Model model = load();
  const std::vector<Made> plain = run(*start(model, 60), mixed_jobs());
  for (const bool overlaps : {false, true}) {
    for (const int64_t drafts : {1, 3, 8}) {
      overlaps_answers_ = overlaps;
      speculation_ = always_drafting(drafts);
      const auto engine = start(model, drafts == 8 ? 10 : 60);  // few pages: preemption
      const std::vector<Made> got = run(*engine, mixed_jobs());
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(got[i].text, plain[i].text) << i << " with " << drafts;
        EXPECT_EQ(got[i].finish, plain[i].finish) << i;
        EXPECT_EQ(got[i].new_tokens, plain[i].new_tokens) << i;
        ASSERT_EQ(got[i].scores.size(), plain[i].scores.size()) << i;
        for (size_t t = 0; t < plain[i].scores.size(); ++t) {
          EXPECT_EQ(got[i].scores[t].id, plain[i].scores[t].id);
          EXPECT_EQ(got[i].scores[t].log_probability, plain[i].scores[t].log_probability);
          EXPECT_EQ(got[i].scores[t].top, plain[i].scores[t].top);
        }
      }
      EXPECT_TRUE(engine->drain(60));
      EXPECT_EQ(engine->metrics().gauges().pages_in_use, 0);
      const double accepted = metric(*engine, "moracle_draft_tokens_accepted_total");
      EXPECT_GT(accepted, 0);
      EXPECT_LT(accepted, metric(*engine, "moracle_draft_tokens_total"));
    }
  }
}

TEST_F(EngineSpeculation, CancelledSequencesFreeThePagesOfTheirDrafts) {
  speculation_ = always_drafting(8);
  Model model = load();
  const auto engine = start(model, 40);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 8; ++i) {
    Job one = job(long_prompt(3), 200, i);
    one.sampling.temperature = 0;
    std::promise<void> began;
    one.sink = [&began, told = false](Event&&) mutable {
      if (!std::exchange(told, true)) began.set_value();
    };
    ids.push_back(engine->submit({one})[0]);
    began.get_future().get();
    engine->cancel(ids.back());
  }
  EXPECT_TRUE(engine->drain(60));
  EXPECT_EQ(engine->metrics().gauges().pages_in_use, 0);
}

// Recurrent layers: after a rejected draft the step's tokens are computed again.
TEST(EngineSpeculationOnGoldenModels, TextsEqualGenerate) {
  double accepted = 0;
  for (const char* name : {"qwen3_next", "lfm2_moe", "deepseek_v2", "phimoe_long"}) {
    const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder(name)));
    Model model =
        must(Model::load(checkpoint, {.threads = 2, .max_num_tokens = 24, .deterministic = true}));
    const Tokenizer tokenizer = must(Tokenizer::open(kFolder));  // its ids go beyond the model's
    std::vector<Job> jobs;  // no other thread may run the model once an engine does
    std::vector<std::vector<int32_t>> wanted, got(6);
    std::vector<std::promise<void>> ends(got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      Job job;
      for (size_t t = 0; t < 11; ++t) job.prompt.push_back(static_cast<int32_t>(t % (3 + i)));
      job.max_tokens = std::min<int64_t>(60, model.max_context() - 12);
      if (i % 2 == 1) job.sampling = {.temperature = 0.3F, .seed = i};
      wanted.push_back(must(generate(model, job.prompt,
                                     {.max_tokens = job.max_tokens, .sampling = job.sampling}))
                           .ids);
      job.num_top = 0;  // events then name their tokens
      job.sink = [&got, &ends, i](Event&& event) {
        for (const TokenScore& score : event.scores) got[i].push_back(score.id);
        if (event.finish != Finish::kNone) ends[i].set_value();
      };
      jobs.push_back(std::move(job));
    }
    const auto engine = must(Engine::start(model, tokenizer,
                                           {.max_running = 4,
                                            .cache_bytes = 12 * PageStore(model).page_bytes(),
                                            .speculation = always_drafting(5)}));
    for (Job& one : jobs) engine->submit({std::move(one)});
    for (auto& end : ends) end.get_future().get();
    EXPECT_EQ(got, wanted) << name;
    EXPECT_GT(metric(*engine, "moracle_draft_tokens_total"), 0) << name;
    accepted += metric(*engine, "moracle_draft_tokens_accepted_total");
  }
  EXPECT_GT(accepted, 0);
}

// Grammars, penalties, scores and adapters, with drafts of the layer.
TEST(EngineSpeculationByLayer, MixedSequencesEqualPlainDecoding) {
  struct Case {
    const char *name, *adapter;
  };
  for (const Case& each : {Case{"glm4_moe", ""}, Case{"deepseek_v3", "latent_attention"},
                           Case{"qwen3_5_moe", "linear_attention"}, Case{"mimo_v2_flash", ""},
                           Case{"deepseek_v32_sparse", ""}, Case{"glm_moe_dsa_sparse", ""}}) {
    const std::string golden = testing::golden_dir();
    const Checkpoint checkpoint = must(Checkpoint::open(golden + "/next_tokens/" + each.name));
    ModelOptions options{
        .threads = 2, .max_num_tokens = 8, .deterministic = true, .next_tokens = true};
    if (*each.adapter != 0) options.adapters = {golden + "/adapters/" + each.adapter};
    Model model = must(Model::load(checkpoint, options));
    const Tokenizer tokenizer = must(Tokenizer::open(kFolder));
    constexpr size_t kJobs = 8;
    double drafted = 0;
    const auto ids_with = [&](const Speculation& speculation) {
      std::vector<std::vector<int32_t>> got(kJobs);
      std::vector<std::promise<void>> ends(kJobs);
      const auto engine = must(Engine::start(
          model, tokenizer,
          {.max_running = 3,
           .cache_bytes = 12 * (PageStore(model).page_bytes() +
                                PageStore(*ModelAccess::next_tokens(model)).page_bytes()),
           .num_adapters = static_cast<int32_t>(options.adapters.size()),
           .speculation = speculation}));
      for (size_t i = 0; i < kJobs; ++i) {
        Job job;
        for (size_t t = 0; t < 4 + 3 * i; ++t)
          job.prompt.push_back(static_cast<int32_t>((t * t + 3 * i) % 40));
        job.max_tokens = 24;
        if (i % 2 == 1) job.sampling = {.temperature = 0.5F, .seed = i};
        if (i % 3 == 1) job.grammar = std::make_shared<ThirdIds>();
        if (i % 3 == 2)
          job.edits = {
              .repetition_penalty = 1.1F, .presence_penalty = 0.5F, .no_repeat_ngram_size = 3};
        if (i % 4 == 3 && !options.adapters.empty()) job.adapter = 0;
        job.num_top = 2;
        job.sink = [&got, &ends, i](Event&& event) {
          for (const TokenScore& score : event.scores) got[i].push_back(score.id);
          if (event.finish != Finish::kNone) ends[i].set_value();
        };
        engine->submit({std::move(job)});
      }
      for (auto& end : ends) end.get_future().get();
      drafted = metric(*engine, "moracle_draft_tokens_total");
      EXPECT_TRUE(engine->drain(60));
      return got;
    };
    const auto plain = ids_with({});
    const auto got = ids_with({.drafter = Drafter::kMtp, .max_drafts = 3, .adaptive = false});
    EXPECT_EQ(got, plain) << each.name;
    EXPECT_GT(drafted, 0) << each.name;
  }
}

// The layer for multi-token prediction, beside prompts in parts and sequences of other lengths.
TEST(EngineSpeculationByLayer, TextsEqualGenerate) {
  for (const char* name :
       {"glm4_moe", "qwen3_next", "mimo_v2_flash", "deepseek_v32_sparse", "glm_moe_dsa_sparse"}) {
    const Checkpoint checkpoint =
        must(Checkpoint::open(testing::golden_dir() + "/next_tokens/" + name));
    Model model = must(Model::load(
        checkpoint,
        {.threads = 2, .max_num_tokens = 8, .deterministic = true, .next_tokens = true}));
    const Tokenizer tokenizer = must(Tokenizer::open(kFolder));
    for (const bool adaptive : {false, true}) {
      std::vector<Job> jobs;  // no other thread may run the model once an engine does
      std::vector<std::vector<int32_t>> wanted, got(5);
      std::vector<std::promise<void>> ends(got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        Job job;
        for (size_t t = 0; t < 5 + 4 * i; ++t)
          job.prompt.push_back(static_cast<int32_t>((t * t + i) % 40));
        job.max_tokens = 30;
        if (i % 2 == 1) job.sampling = {.temperature = 0.4F, .seed = i};
        wanted.push_back(must(generate(model, job.prompt,
                                       {.max_tokens = job.max_tokens, .sampling = job.sampling}))
                             .ids);
        job.num_top = 0;
        job.sink = [&got, &ends, i](Event&& event) {
          for (const TokenScore& score : event.scores) got[i].push_back(score.id);
          if (event.finish != Finish::kNone) ends[i].set_value();
        };
        jobs.push_back(std::move(job));
      }
      const auto engine = must(Engine::start(
          model, tokenizer,
          {.max_running = 3,
           .cache_bytes = 12 * (PageStore(model).page_bytes() +
                                PageStore(*ModelAccess::next_tokens(model)).page_bytes()),
           .speculation = {.drafter = Drafter::kAuto, .max_drafts = 3, .adaptive = adaptive}}));
      for (Job& one : jobs) engine->submit({std::move(one)});
      for (auto& end : ends) end.get_future().get();
      EXPECT_EQ(got, wanted) << name;
      EXPECT_GT(metric(*engine, "moracle_draft_tokens_total"), 0) << name;
      EXPECT_TRUE(engine->drain(60));
      EXPECT_EQ(engine->metrics().gauges().pages_in_use, 0);
    }
  }
}

TEST(EngineSpeculationOnRanks, TextsEqualOneProcess) {
  for (const Spread spread : {Spread::kReplicated, Spread::kDispatched}) {
    const auto options_of = [&](const std::shared_ptr<Group>& group) {
      ModelOptions options = testing::served_options(group);
      options.deterministic = true;
      if (group) options.spread = spread;
      return options;
    };
    const Tokenizer tokenizer = must(Tokenizer::open(kFolder));
    const auto texts = [&](Model& model, const Speculation& speculation) {
      const auto engine = must(Engine::start(model, tokenizer,
                                             {.max_running = 4,
                                              .cache_bytes = 30 * PageStore(model).page_bytes(),
                                              .speculation = speculation}));
      std::vector<Waiting> waiting(4);
      for (size_t i = 0; i < waiting.size(); ++i) {
        Job job;
        job.prompt = must(tokenizer.encode_prompt(long_prompt(2, static_cast<int>(i))));
        job.max_tokens = 24;
        if (i % 2 == 1) job.sampling = {.temperature = 0.7F, .seed = i};
        job.sink = waiting[i].sink();
        engine->submit({std::move(job)});
      }
      std::vector<std::string> all;
      for (Waiting& each : waiting) all.push_back(each.get().text);
      return all;
    };
    Model alone = testing::served_model(options_of(nullptr));
    const std::vector<std::string> wanted = texts(alone, {});
    testing::on_ranks(2, [&](const std::shared_ptr<Group>& group) {
      Model model = testing::served_model(options_of(group));
      if (group->rank() > 0) {
        EXPECT_TRUE(follow(model, testing::kServedFolder, options_of(group)));
        return;
      }
      EXPECT_EQ(texts(model, always_drafting(4)), wanted);
    });
  }
}

}  // namespace
}  // namespace moracle::serve::engine_test
