// Tests prefixes of models with recurrent layers, and pages that come back from host memory: every
// text equals generate()'s.
#include <gmock/gmock.h>

#include <random>

#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "serve/engine_fixture.h"
#include "support/device.h"

namespace moracle::serve::engine_test {
namespace {

using testing::must;

struct Request {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
  std::string salt;
  std::vector<int32_t> wanted;
};

struct Answer {
  std::vector<int32_t> ids;
  std::promise<Finish> end;
};

class PrefixesOfModels : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    const std::string kind = std::get<0>(GetParam());
    if (const auto device = testing::open_test_device(kind); !device)
      GTEST_SKIP() << device.error().to_string();
    testing::SyntheticCheckpoint files = testing::golden_model(std::get<1>(GetParam()));
    for (const char* key : {"max_position_embeddings", "model_max_length"}) {
      for (auto* config : {&files.config, &files.config["text_config"]})
        if (config->contains(key)) (*config)[key] = 4096;
    }
    if (files.config["text_config"].is_null()) files.config.erase("text_config");
    ModelOptions options;
    options.device = must(parse_device(kind == "opencl" ? testing::opencl_name() : kind));
    options.threads = 2;
    options.max_num_tokens = 512;
    options.deterministic = true;
    options.cache_bytes = model_cache_bytes_;
    const Checkpoint checkpoint = must(files.open());
    model_.emplace(must(Model::load(checkpoint, options)));
  }

  int64_t page() { return PageStore(*model_).page(); }
  // Cache of `pages` pages and `states` states.
  int64_t bytes_for(int64_t pages, int64_t states) {
    const PageStore store(*model_);
    return std::max(pages * store.page_bytes() + states * store.state_bytes(),
                    4 * states * store.state_bytes());
  }

  // Prompts that begin with one of few texts, end anywhere, and go on as earlier answers.
  std::vector<Request> requests(int count, uint32_t seed, int64_t num_texts = 2) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % most); };
    std::vector<Request> all;
    for (int i = 0; i < count; ++i) {
      Request request;
      if (i > 2 && below(3) == 0) {  // the next turn of a conversation
        const Request& before = all[static_cast<size_t>(below(i))];
        request.prompt = before.prompt;
        request.prompt.insert(request.prompt.end(), before.wanted.begin(), before.wanted.end());
        request.salt = before.salt;
      } else {
        const int64_t text = below(num_texts), length = page() + below(page() * 3 / 2);
        for (int64_t t = 0; t < length; ++t)
          request.prompt.push_back(static_cast<int32_t>((t * t + text * t + 3 * text) % 39));
      }
      for (int64_t t = below(9); t >= 0; --t)
        request.prompt.push_back(static_cast<int32_t>(below(40)));
      if (i % 7 == 3) request.salt = "other";
      request.max_tokens = 1 + below(12);
      request.wanted =
          must(generate(*model_, request.prompt, {.max_tokens = request.max_tokens})).ids;
      all.push_back(std::move(request));
    }
    return all;
  }

  // Submits all requests, `together` at once. Returns how many failed.
  int run(Engine& engine, const std::vector<Request>& requests, size_t together) {
    int failed = 0;
    for (size_t first = 0; first < requests.size(); first += together) {
      const size_t count = std::min(together, requests.size() - first);
      std::vector<std::shared_ptr<Answer>> answers;
      for (size_t i = 0; i < count; ++i) {
        const Request& request = requests[first + i];
        Job job;
        job.prompt = request.prompt;
        job.max_tokens = request.max_tokens;
        job.cache_salt = request.salt;
        job.num_top = 0;  // events then name their tokens
        job.sink = [answer = answers.emplace_back(std::make_shared<Answer>())](Event&& event) {
          for (const TokenScore& score : event.scores) answer->ids.push_back(score.id);
          if (event.finish != Finish::kNone) answer->end.set_value(event.finish);
        };
        const auto ids = engine.submit({std::move(job)});
        if (!cancels_ || i + 1 < count) continue;
        engine.cancel(ids[0]);  // beside its neighbours' steps
        answers.pop_back();
      }
      for (size_t i = 0; i < answers.size(); ++i) {
        if (answers[i]->end.get_future().get() == Finish::kFailed)
          ++failed;
        else
          EXPECT_EQ(answers[i]->ids, requests[first + i].wanted) << "request " << first + i;
      }
    }
    return failed;
  }
  std::unique_ptr<Engine> start(int64_t cache_bytes, int64_t ram_slots = 0,
                                const Speculation& speculation = {}) {
    return must(Engine::start(*model_, tokenizer_,
                              {.max_running = 4,
                               .cache_bytes = cache_bytes,
                               .cache_ram = ram_slots * PageStore(*model_).page_bytes(),
                               .speculation = speculation}));
  }
  bool is_recurrent() { return ModelAccess::is_recurrent(*model_); }

  const Tokenizer tokenizer_ = must(Tokenizer::open(kFolder));  // its ids go beyond the model's
  std::optional<Model> model_;
  int64_t model_cache_bytes_ = 0;
  bool cancels_ = false;
};

TEST_P(PrefixesOfModels, TextsEqualGenerateWithManyPages) {
  const std::vector<Request> all = requests(16, 1);
  const auto engine = start(bytes_for(60, 12));
  EXPECT_EQ(run(*engine, all, 3), 0);
  const Gauges gauges = engine->metrics().gauges();
  EXPECT_GT(gauges.reused_tokens, 2 * page());
  if (!is_recurrent()) return;
  EXPECT_GT(gauges.traffic.states_restored, 2);
  EXPECT_GT(gauges.states, 0);
  EXPECT_LE(gauges.states, gauges.most_states);
}

TEST_P(PrefixesOfModels, TextsEqualGenerateWithFewPagesAndHostMemory) {
  const std::vector<Request> all = requests(30, 2, 5);
  const int64_t slots = 8 + 4 * PageStore(*model_).state_slots();
  const auto engine = start(bytes_for(5, 1), slots);
  EXPECT_EQ(run(*engine, all, 2), 0);
  const Gauges gauges = engine->metrics().gauges();
  EXPECT_GT(gauges.traffic.ram_hits, 0);
  EXPECT_GT(gauges.traffic.bytes_saved, 0);
  EXPECT_GT(gauges.traffic.bytes_back, 0);
  EXPECT_EQ(gauges.traffic.errors, 0);
  EXPECT_LE(gauges.ram_bytes, gauges.most_ram_bytes);
  EXPECT_EQ(gauges.most_ram_bytes, slots * PageStore(*model_).page_bytes());
}

TEST_P(PrefixesOfModels, TextsEqualGenerateWithDrafts) {
  const std::vector<Request> all = requests(12, 3);
  const auto engine = start(bytes_for(12, 3), 16, always_drafting(4));
  EXPECT_EQ(run(*engine, all, 3), 0);
  EXPECT_GT(engine->metrics().gauges().reused_tokens, 0);
}

TEST_P(PrefixesOfModels, CancelledRequestsLeaveWholePrefixes) {
  const std::vector<Request> all = requests(18, 4);
  cancels_ = true;
  const auto engine = start(bytes_for(9, 3), 12);
  for (const Request& request : all) run(*engine, {request, request, request}, 3);
  cancels_ = false;
  EXPECT_EQ(run(*engine, {all.begin(), all.begin() + 6}, 2), 0);
}

constexpr const char* kModels[] = {
    "qwen3_moe", "qwen3_next", "qwen3_5_moe", "granite_moe_hybrid", "kimi_linear", "bailing_hybrid",
    "minimax",   "lfm2_moe",   "deepseek_v4", "glm5_next_pools",    "qwen4_exp"};
constexpr const char* kFewModels[] = {"qwen3_moe", "qwen3_next"};
std::string label(const ::testing::TestParamInfo<std::tuple<const char*, const char*>>& tested) {
  return std::string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param);
}
INSTANTIATE_TEST_SUITE_P(Cpu, PrefixesOfModels,
                         ::testing::Combine(::testing::Values("cpu"), ::testing::ValuesIn(kModels)),
                         label);
// Not the last one, which runs on CPUs alone.
INSTANTIATE_TEST_SUITE_P(Cuda, PrefixesOfModels,
                         ::testing::Combine(::testing::Values("cuda"),
                                            ::testing::ValuesIn(kModels, std::end(kModels) - 1)),
                         label);

// PoCL takes long for a step: few requests, with all features at once.
class PrefixesOnOpenCl : public PrefixesOfModels {};
TEST_P(PrefixesOnOpenCl, TextsEqualGenerate) {
  const std::vector<Request> all = requests(7, 6);
  const auto engine = start(bytes_for(6, 1), 8 + 4 * PageStore(*model_).state_slots());
  EXPECT_EQ(run(*engine, all, 2), 0);
  EXPECT_GT(engine->metrics().gauges().reused_tokens, 0);
  EXPECT_EQ(engine->metrics().gauges().traffic.errors, 0);
}
INSTANTIATE_TEST_SUITE_P(OpenCl, PrefixesOnOpenCl,
                         ::testing::Combine(::testing::Values("opencl"),
                                            ::testing::ValuesIn(kFewModels)),
                         label);

// The device refuses pages that the engine counts on: requests fail, texts stay right, and later
// requests with the same prefixes find nothing wrong.
class PrefixesInRefusedMemory : public PrefixesOfModels {
 protected:
  void SetUp() override {
    PrefixesOfModels::SetUp();
    if (IsSkipped()) return;
    model_cache_bytes_ = bytes_for(5, 0);
    PrefixesOfModels::SetUp();
  }
};
TEST_P(PrefixesInRefusedMemory, RequestsFailAndLaterTextsAreRight) {
  const std::vector<Request> all = requests(20, 5);
  const auto engine = start(bytes_for(12, 3), 10);
  const int failed = run(*engine, all, 4);
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 20);
  EXPECT_EQ(run(*engine, all, 1), 0);
}
INSTANTIATE_TEST_SUITE_P(Cpu, PrefixesInRefusedMemory,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("qwen3_moe", "qwen3_next")),
                         label);

}  // namespace
}  // namespace moracle::serve::engine_test
