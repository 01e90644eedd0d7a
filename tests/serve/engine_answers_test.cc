// Tests the engine with and without overlap: events that a token's detokenization triggers while
// the next step may be running.
#include <set>

#include "base/text.h"
#include "checkpoint/safetensors_writer.h"
#include "serve/engine_fixture.h"
#include "support/temporary_folder.h"

namespace moracle::serve::engine_test {
namespace {

// Writes a PEFT adapter for one expert of the first layer.
void write_adapter(const testing::TemporaryFolder& folder) {
  std::vector<testing::TensorBytes> tensors;
  const auto add = [&](const char* half, int64_t rows, int64_t cols) {
    tensors.push_back(
        {str("base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_", half, ".weight"),
         DType::kF32,
         {rows, cols},
         testing::bytes_of(std::vector<float>(rows * cols, 0.1F))});
  };
  add("A", 2, 256);
  add("B", 128, 2);
  must(testing::write_safetensors(folder.path() + "/adapter_model.safetensors", tensors));
  folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
}

// A stop string ends a sequence whose next token may already be computed.
TEST_P(EngineWithOverlap, StopStringsEndSequencesWhileOthersContinue) {
  Model model = load(), alone = load();
  const auto engine = start(model, 40);
  constexpr int kJobs = 12;
  std::vector<Waiting> waiting(kJobs);
  std::vector<std::string> wanted;
  for (int i = 0; i < kJobs; ++i) {
    Job one = job("And the LORD spake unto Moses,", 60, i);
    wanted.push_back(expected(alone, one));
    if (i % 3 != 0) {
      const std::string stop = wanted.back().substr(5 * i, 4);
      one.stop_strings = {stop};
      wanted.back().resize(wanted.back().find(stop));
    }
    one.sink = waiting[i].sink();
    engine->submit({one});
  }
  for (int i = 0; i < kJobs; ++i) {
    const Text made = waiting[i].get();
    EXPECT_EQ(made.text, wanted[i]) << i;
    EXPECT_EQ(made.last.finish, i % 3 != 0 ? Finish::kStop : Finish::kLength);
  }
  EXPECT_TRUE(engine->drain(60));
  EXPECT_EQ(engine->metrics().gauges().pages_in_use, 0);
}

TEST_P(EngineWithOverlap, PenaltiesSeeEveryTokenBeforeNextSample) {
  Model model = load();
  Job one = job("And it came to pass", 40, 3);
  one.sampling.temperature = 0;
  one.edits.presence_penalty = 100;  // forbids repeated tokens
  one.num_top = 0;
  std::vector<int32_t> ids;
  std::promise<void> done;
  one.sink = [&](Event&& event) {
    for (const TokenScore& score : event.scores) ids.push_back(score.id);
    if (event.finish != Finish::kNone) done.set_value();
  };
  const auto engine = start(model, 8);
  engine->submit({one});
  done.get_future().get();
  EXPECT_EQ(ids.size(), 40u);
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), ids.size());
}

// Sequences with and without logit edits share steps. Each text must equal generate()'s.
TEST_P(EngineWithOverlap, EditedTextsMatchAloneAndBatched) {
  Model model = load(), alone = load();
  const auto engine = start(model, 60);
  constexpr int kJobs = 8;
  std::vector<Waiting> waiting(kJobs);
  std::vector<std::string> wanted;
  for (int i = 0; i < kJobs; ++i) {
    Job one = job("And the LORD spake unto Moses,", 24, i);
    if (i % 3 != 0) one.edits = {.repetition_penalty = 1.1F, .no_repeat_ngram_size = 1 + i % 4};
    if (i % 2 != 0) one.sampling = {.temperature = 1, .top_k = 20, .typical_p = 0.8F};
    wanted.push_back(expected(alone, one));
    one.sink = waiting[i].sink();
    engine->submit({one});
  }
  for (int i = 0; i < kJobs; ++i) EXPECT_EQ(waiting[i].get().text, wanted[i]) << i;
}

TEST_P(EngineWithOverlap, StopStringMatchesSpecialToken) {
  Model model = load();
  const auto engine = start(model, 8);
  const auto special = tokenizer_.eos_id();
  ASSERT_TRUE(special && tokenizer_.is_special(*special));
  Job one = job("And it came to pass", 40, 1);
  one.edits.bias[*special] = 1000;  // forces this token first
  one.stop_strings = {must(tokenizer_.decode({&*special, 1}))};
  Waiting waiting;
  one.sink = waiting.sink();
  engine->submit({one});
  const Text made = waiting.get();
  EXPECT_EQ(made.text, "");
  EXPECT_EQ(made.last.finish, Finish::kStop);
  EXPECT_EQ(made.last.new_tokens, 1);
}

// Batch size 1: the second job waits.
TEST_P(EngineWithOverlap, UnloadedAdapterFinishesRunningJobsAndRejectsWaitingOnes) {
  const testing::TemporaryFolder folder;
  write_adapter(folder);
  options_.adapters = {folder.path()};
  Model model = load(), alone = load();
  const auto engine = start(model, 8, 1);
  Waiting waiting, later, plain;
  Job first = job("And the LORD", 200, 1), second = job("And the LORD", 5, 1),
      third = job("And the LORD", 5, 1);
  std::promise<void> began;
  bool told = false;
  first.adapter = second.adapter = 0;
  first.sink = [&, sink = waiting.sink()](Event&& event) {
    if (!std::exchange(told, true)) began.set_value();
    sink(std::move(event));
  };
  second.sink = later.sink();
  third.sink = plain.sink();
  engine->submit({first});
  engine->submit({second});
  engine->submit({third});
  began.get_future().get();
  engine->retire_adapter(0);
  EXPECT_EQ(later.get().last.finish, Finish::kUnloaded);
  const Text made = waiting.get();
  EXPECT_EQ(made.last.finish, Finish::kLength);
  EXPECT_EQ(made.last.new_tokens, 200);
  EXPECT_EQ(plain.get().last.finish, Finish::kLength);
  Waiting after;
  second.sink = after.sink();
  engine->submit({second});
  EXPECT_EQ(after.get().last.finish, Finish::kUnloaded);
}

}  // namespace
}  // namespace moracle::serve::engine_test
