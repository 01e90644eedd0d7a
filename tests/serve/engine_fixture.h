// Fixture: the engine on the bundled model, and texts of the library's generate() to compare with.
#pragma once

#include <gtest/gtest.h>

#include <future>

#include "paths.h"
#include "serve/engine/engine.h"
#include "support/must.h"

namespace moracle::serve::engine_test {

using testing::must;

inline const std::string kFolder = testing::models_dir() + "/qwen3moe-gptq-int4-g128";

struct Text {
  std::string text;
  Event last;
  std::vector<TokenScore> of_prompt;
};

/// Collects the events of one job.
class Waiting {
 public:
  std::function<void(Event&&)> sink() {
    return [this](Event&& event) {
      collected_.text += event.text;
      for (TokenScore& score : event.of_prompt) collected_.of_prompt.push_back(score);
      if (event.finish == Finish::kNone) return;
      collected_.last = std::move(event);
      done_.set_value(std::move(collected_));
    };
  }
  Text get() { return done_.get_future().get(); }

 private:
  Text collected_;
  std::promise<Text> done_;
};

class EngineOnSmallModel : public ::testing::Test {
 protected:
  EngineOnSmallModel() {
    options_.deterministic = true;
    options_.threads = 2;
    options_.max_num_tokens = 64;
  }
  Model load() const { return must(Model::load(checkpoint_, options_)); }
  std::unique_ptr<Engine> start(Model& model, int64_t num_pages, int64_t max_running = 8) {
    const int64_t page_bytes = PageStore(model).page_bytes();
    return must(Engine::start(model, tokenizer_,
                              {.max_running = max_running,
                               .cache_bytes = num_pages * page_bytes,
                               .num_adapters = static_cast<int32_t>(options_.adapters.size()),
                               .overlaps_answers = overlaps_answers_,
                               .speculation = speculation_}));
  }
  Job job(const std::string& prompt, int64_t max_tokens, uint64_t seed = 0) const {
    Job job;
    job.prompt = must(tokenizer_.encode_prompt(prompt));
    job.max_tokens = max_tokens;
    job.sampling = {.temperature = 0.8F, .top_p = 0.95F, .seed = seed};
    return job;
  }
  // Text of the library's generate().
  std::string expected(Model& model, const Job& job) const {
    const Generation done = must(generate(model, job.prompt,
                                          {.max_tokens = job.max_tokens,
                                           .sampling = job.sampling,
                                           .edits = job.edits,
                                           .stop_ids = job.stop_ids}));
    TokenStream stream(tokenizer_);
    must(stream.follow(job.prompt));
    std::string text;
    for (const int32_t id : done.ids) text += must(stream.push(id));
    return text + stream.finish();
  }

  const Checkpoint checkpoint_ = must(Checkpoint::open(kFolder));
  const Tokenizer tokenizer_ = must(Tokenizer::open(kFolder));
  ModelOptions options_;
  bool overlaps_answers_ = false;
  Speculation speculation_;
};

/// Always verifies as many drafts as there are.
inline Speculation always_drafting(int64_t max_drafts) {
  return {.drafter = Drafter::kNgram, .max_drafts = max_drafts, .adaptive = false};
}

struct EngineMode {
  bool overlaps = false;  ///< detokenization and replies overlap the next step
  int64_t drafts = 0;
};
class EngineWithOverlap : public EngineOnSmallModel,
                          public ::testing::WithParamInterface<EngineMode> {
 protected:
  EngineWithOverlap() {
    overlaps_answers_ = GetParam().overlaps;
    if (GetParam().drafts > 0) speculation_ = always_drafting(GetParam().drafts);
  }
};
inline std::string long_prompt(int sentences, int first = 0) {
  std::string text;
  for (int i = 0; i < sentences; ++i)
    text += "And it came to pass in the day number " + std::to_string(first + i) +
            " that the word of the LORD came unto Moses. ";
  return text;
}

}  // namespace moracle::serve::engine_test
