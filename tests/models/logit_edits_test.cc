// Compares LogitEditor and typical_p with numbers that transformers 5.24 computed with the logits
// processors of the same names.
#include "models/generation/logit_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "checkpoint/to_gguf.h"
#include "golden_model.h"
#include "models/generation/sampler.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::logit_edits_test {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using testing::must;
using ::testing::Pointwise;

constexpr float kOff = -INFINITY;
const std::vector<int32_t> kPrompt = {1, 2, 3, 1, 2}, kGenerated = {4, 1, 2}, kStops = {0};
const std::vector<float> kLogits = {2, -1, 0.5F, 3, -2, 1, 0, -0.5F};

std::vector<float> edited(const LogitEdits& edits, bool at_start = false) {
  LogitEditor editor(edits, kPrompt, kStops);
  for (const int32_t id : kGenerated) {
    if (!at_start) editor.add(id);
  }
  std::vector<float> logits = kLogits;
  editor.apply(logits);
  EXPECT_EQ(editor.changes_nothing(), logits == kLogits);
  return logits;
}

TEST(LogitEditor, MatchesTransformersProcessors) {
  struct Case {
    LogitEdits edits;
    std::vector<float> want;
    bool at_start = false;
  };
  const Case cases[] = {
      {{.repetition_penalty = 1.3F}, {2, -1.3F, 0.3846154F, 2.307692F, -2.6F, 1, 0, -0.5F}},
      {{.repetition_penalty = 0.8F}, {2, -0.8F, 0.625F, 3.75F, -1.6F, 1, 0, -0.5F}},
      {{.no_repeat_ngram_size = 3}, {2, -1, 0.5F, kOff, kOff, 1, 0, -0.5F}},
      {{.no_repeat_ngram_size = 1}, {2, kOff, kOff, kOff, kOff, 1, 0, -0.5F}},
      // The stop id 0 as a bad word is ignored.
      {{.bad_words_ids = {{5}, {0}, {2, 6}, {1, 2, 3}, {7, 7}, {4, 1, 2, 1}}},
       {2, kOff, 0.5F, kOff, -2, kOff, kOff, -0.5F}},
      {{.min_tokens = 4}, {kOff, -1, 0.5F, 3, -2, 1, 0, -0.5F}},
      {{.min_tokens = 3}, kLogits},
      {{.min_length = 9}, {kOff, -1, 0.5F, 3, -2, 1, 0, -0.5F}},
      {{.min_length = 8}, kLogits},
      {{.suppress_tokens = {3, 7, 99}}, {2, -1, 0.5F, kOff, -2, 1, 0, kOff}},
      {{.begin_suppress_tokens = {1, 3}}, kLogits},
      {{.begin_suppress_tokens = {1, 3}}, {2, kOff, 0.5F, kOff, -2, 1, 0, -0.5F}, true},
      {{.bias = {{1, -0.5F}, {6, 2}},
        .repetition_penalty = 1.3F,
        .no_repeat_ngram_size = 3,
        .bad_words_ids = {{2, 6}, {7}},
        .min_length = 9,
        .suppress_tokens = {5}},
       {kOff, -1.95F, 0.3846154F, kOff, kOff, kOff, kOff, kOff}},
  };
  for (size_t i = 0; i < std::size(cases); ++i)
    EXPECT_THAT(edited(cases[i].edits, cases[i].at_start), Pointwise(FloatEq(), cases[i].want))
        << "case " << i;
  // A run longer than the text: repeats nothing yet.
  LogitEditor longer({.no_repeat_ngram_size = 9}, kPrompt, kStops);
  std::vector<float> logits = kLogits;
  longer.apply(logits);
  EXPECT_EQ(logits, kLogits);
}

TEST(LogitEditor, AppliesPenaltiesInOrder) {
  LogitEditor editor({.bias = {{3, 5}, {100, 1}},
                      .repetition_penalty = 2,
                      .frequency_penalty = 0.5F,
                      .presence_penalty = 1},
                     std::vector<int32_t>{0, 1}, {});
  for (const int32_t id : {1, 2, 2}) editor.add(id);
  std::vector<float> logits = {4, -4, 8, 0};
  editor.apply(logits);
  // In the prompt: 4 / 2. In both, once: -4 · 2 - 0.5 - 1. Generated twice: 8 / 2 - 2 · 0.5 - 1.
  EXPECT_THAT(logits, ElementsAre(2, -9.5F, 2, 5));
  LogitEditor biased({.bias = {{0, -3}}, .repetition_penalty = 2}, std::vector<int32_t>{0}, {});
  logits = {1};
  biased.apply(logits);
  EXPECT_EQ(logits[0], -4) << "the penalty applies after the bias";
}

TEST(LogitEdits, BadWordIsForbiddenAtTheStartAndBehindASpace) {
  const testing::TemporaryFolder folder;
  folder.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2,
      " a": 3, " ab": 4}, "merges": [[" ", "a"], [" a", "b"]]}, "added_tokens": [],
      "decoder": {"type": "Fuse"}})");
  const Tokenizer tokenizer = must(Tokenizer::open(folder.path()));
  using Runs = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(must(runs_of_word(tokenizer, "ab")), (Runs{{0, 1}, {4}}));
  EXPECT_EQ(must(runs_of_word(tokenizer, " a")), (Runs{{0}, {3}}));
  EXPECT_EQ(must(runs_of_word(tokenizer, "b")), (Runs{{1}})) << "the space is a token of its own";
  EXPECT_EQ(runs_of_word(tokenizer, " ").error().place, "bad_words");
}

TEST(LogitEdits, WrongValuesAreRefusedByName) {
  const std::pair<LogitEdits, const char*> cases[] = {
      {{.repetition_penalty = 0}, "repetition_penalty"},
      {{.repetition_penalty = NAN}, "repetition_penalty"},
      {{.no_repeat_ngram_size = -1}, "no_repeat_ngram_size"},
      {{.bad_words_ids = {{}}}, "bad_words_ids"},
      {{.min_tokens = -1}, "min_tokens"}};
  for (const auto& [edits, place] : cases) {
    const Status status = check(edits);
    ASSERT_FALSE(status.ok()) << place;
    EXPECT_EQ(status.error().place, place);
  }
}

TEST(Sampler, TypicalDrawsTheIdsThatTransformersKeeps) {
  const std::vector<float> logits = {3, 2.5F, 2.4F, 1.5F, 1, 0.9F, 0.2F, -0.5F, -1, -2, -3, -6};
  const std::pair<SamplingOptions, std::set<int32_t>> cases[] = {
      {{.temperature = 1, .typical_p = 0.2F}, {1, 2}},
      {{.temperature = 1, .typical_p = 0.5F}, {0, 1, 2}},
      {{.temperature = 1, .typical_p = 0.9F}, {0, 1, 2, 3, 4}},
      {{.temperature = 1, .top_k = 6, .typical_p = 0.5F}, {0, 1, 2}},
      {{.temperature = 0.7F, .top_p = 0.9F, .typical_p = 0.5F}, {0, 1, 2}},
      {{.temperature = 1.5F, .min_p = 0.1F, .typical_p = 0.6F}, {0, 1, 2, 3}},
      {{.temperature = 1, .top_k = 8, .top_p = 0.95F, .min_p = 0.05F, .typical_p = 0.3F}, {1, 2}}};
  for (const auto& [options, want] : cases) {
    Sampler sampler(options);
    std::map<int32_t, int> counts;
    for (int draw = 0; draw < 2000; ++draw) ++counts[*sampler.draw(logits)];
    std::set<int32_t> drawn;
    for (const auto& [id, count] : counts) drawn.insert(id);
    EXPECT_EQ(drawn, want) << options.typical_p;
    if (want.size() == 2) {
      EXPECT_NEAR(counts[1] / 2000., 0.525, 0.05);
    }
  }
  EXPECT_FALSE(check(SamplingOptions{.typical_p = 0}));
}

// The model of a golden folder beside a generation_config.json.
class Folder {
 public:
  explicit Folder(const std::string& generation_config) {
    for (const auto& file :
         std::filesystem::directory_iterator(testing::golden_folder("qwen3_moe")))
      std::filesystem::copy(file.path(), folder_.path());
    if (!generation_config.empty()) folder_.write("generation_config.json", generation_config);
  }
  Checkpoint open() const { return must(Checkpoint::open(folder_.path())); }
  const testing::TemporaryFolder& folder() const { return folder_; }

 private:
  testing::TemporaryFolder folder_;
};

TEST(GenerationConfig, ReadsEveryKeyThatIsFollowed) {
  const Folder folder(R"({"do_sample": true, "temperature": 0.5, "top_k": 3, "top_p": 0.9,
      "min_p": 0.1, "typical_p": 0.7, "repetition_penalty": 1.05, "no_repeat_ngram_size": 4,
      "bad_words_ids": [[1, 2], [3]], "suppress_tokens": [4, 5], "begin_suppress_tokens": [6],
      "min_new_tokens": 7, "min_length": 8, "max_new_tokens": 9, "stop_strings": ["a", "b"],
      "eos_token_id": [10, 11], "num_beams": 1, "max_length": 99, "guidance_scale": null})");
  const GenerationConfig config = must(GenerationConfig::open(folder.open()));
  EXPECT_FLOAT_EQ(config.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(config.sampling.typical_p, 0.7F);
  EXPECT_FLOAT_EQ(config.edits.repetition_penalty, 1.05F);
  EXPECT_EQ(config.edits.no_repeat_ngram_size, 4);
  EXPECT_THAT(config.edits.bad_words_ids, ElementsAre(ElementsAre(1, 2), ElementsAre(3)));
  EXPECT_THAT(config.edits.suppress_tokens, ElementsAre(4, 5));
  EXPECT_THAT(config.edits.begin_suppress_tokens, ElementsAre(6));
  EXPECT_EQ(config.edits.min_tokens, 7);
  EXPECT_EQ(config.edits.min_length, 0) << "min_new_tokens takes precedence";
  EXPECT_EQ(config.max_tokens, 9);
  EXPECT_THAT(config.stop_strings, ElementsAre("a", "b"));
  EXPECT_THAT(config.eos_ids, ElementsAre(10, 11));
  EXPECT_TRUE(config.not_followed.empty());
}

TEST(GenerationConfig, GreedyTextsFollowPenaltiesToo) {
  const Folder folder(R"({"repetition_penalty": 1.2, "typical_p": 0.5, "min_length": 8,
                          "stop_strings": "end"})");
  const GenerationConfig config = must(GenerationConfig::open(folder.open()));
  EXPECT_EQ(config.sampling.temperature, 0);
  EXPECT_EQ(config.sampling.typical_p, 1);
  EXPECT_FLOAT_EQ(config.edits.repetition_penalty, 1.2F);
  EXPECT_EQ(config.edits.min_length, 8);
  EXPECT_THAT(config.stop_strings, ElementsAre("end"));
}

TEST(GenerationConfig, NamesKeysThatAreNotFollowed) {
  const Folder folder(R"({"num_beams": 4, "max_length": 4096, "penalty_alpha": 0.6,
      "forced_bos_token_id": 0, "sequence_bias": [[[1], 2.0]], "epsilon_cutoff": 0.0,
      "transformers_version": "5.0", "use_cache": true})");
  EXPECT_THAT(must(GenerationConfig::open(folder.open())).not_followed,
              ElementsAre("generation_config.json: forced_bos_token_id 0 is not followed",
                          "generation_config.json: max_length 4096 is not followed",
                          "generation_config.json: num_beams 4 is not followed",
                          "generation_config.json: penalty_alpha 0.6 is not followed",
                          "generation_config.json: sequence_bias [[[1],2.0]] is not followed"));
}

TEST(GenerationConfig, WrongValuesAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"repetition_penalty": 0})", "repetition_penalty: needs a number above 0"},
      {R"({"bad_words_ids": [[]]})", "bad_words_ids: needs"},
      {R"({"bad_words_ids": [5]})", "bad_words_ids[0]: needs"},
      {R"({"suppress_tokens": [-1]})", "suppress_tokens: needs token ids"},
      {R"({"max_new_tokens": 0})", "max_new_tokens: needs"},
      {R"({"stop_strings": [""]})", "stop_strings: needs"}};
  for (const auto& [text, message] : cases) {
    const auto config = GenerationConfig::open(Folder(text).open());
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(config.error().to_string(), HasSubstr(message));
    EXPECT_THAT(config.error().file, HasSubstr("generation_config.json"));
  }
}

TEST(GenerationConfig, ReadsSamplingKeysOfGguf) {
  const testing::TemporaryFolder folder;
  testing::GgufWriter writer = testing::to_gguf(testing::SyntheticCheckpoint::plain());
  const auto open = [&] {
    writer.write(folder.path() + "/model.gguf");
    return GenerationConfig::open(must(Checkpoint::open(folder.path() + "/model.gguf")));
  };
  EXPECT_EQ(must(open()).sampling.temperature, 0);
  writer.set("general.sampling.penalty_repeat", 1.25);
  EXPECT_EQ(must(open()).sampling.temperature, 0);
  EXPECT_EQ(must(open()).edits.repetition_penalty, 1.25F);
  writer.set("general.sampling.temp", 0.5);
  writer.set("general.sampling.top_k", 3);
  writer.set("general.sampling.top_p", 0.75);
  writer.set("general.sampling.min_p", 0.125);
  writer.set("general.sampling.mirostat", 2);
  writer.set("general.sampling.xtc_probability", 0.5);
  writer.set("general.sampling.xtc_threshold", 0.25);
  const GenerationConfig config = must(open());
  EXPECT_EQ(config.sampling.temperature, 0.5F);
  EXPECT_EQ(config.sampling.top_k, 3);
  EXPECT_EQ(config.sampling.top_p, 0.75F);
  EXPECT_EQ(config.sampling.min_p, 0.125F);
  EXPECT_EQ(config.sampling.xtc_probability, 0.5F);
  EXPECT_EQ(config.sampling.xtc_threshold, 0.25F);
  EXPECT_THAT(config.not_followed,
              ElementsAre("metadata: general.sampling.mirostat 2 is not followed"));
  writer.set("general.sampling.temp", "warm");
  EXPECT_THAT(open().error().to_string(),
              HasSubstr("model.gguf: general.sampling.temp: needs a number"));
}

TEST(GenerationConfig, TokenizersEosTokenStopsToo) {
  for (const char* eos : {R"("<end>")", R"({"content": "<end>", "lstrip": false})"}) {
    const Folder folder(R"({"eos_token_id": 7})");
    folder.folder().write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0,
        "<end>": 1}, "merges": []}, "added_tokens": [],
        "decoder": {"type": "Fuse"}})");
    folder.folder().write("tokenizer_config.json", std::string(R"({"eos_token": )") + eos + "}");
    const Tokenizer tokenizer = must(Tokenizer::open(folder.folder().path()));
    EXPECT_THAT(must(GenerationConfig::open(folder.open(), &tokenizer)).eos_ids, ElementsAre(7, 1));
    EXPECT_TRUE(tokenizer.is_special(1));
    EXPECT_THAT(must(GenerationConfig::open(folder.open())).eos_ids, ElementsAre(7));
  }
}

TEST(Generate, FollowsEdits) {
  Model model = must(Model::load(Folder("").open(), {.threads = 1}));
  const std::vector<int32_t> prompt = {1, 2, 3, 4};
  const auto ids = [&](const LogitEdits& edits, const std::vector<int32_t>& stop_ids = {}) {
    return must(generate(model, prompt, {.max_tokens = 12, .edits = edits, .stop_ids = stop_ids}))
        .ids;
  };
  const std::vector<int32_t> plain = ids({});
  // A stop id that would end the text at once must wait.
  EXPECT_EQ(ids({}, {plain[0]}).size(), 1u);
  EXPECT_GT(ids({.min_tokens = 3}, {plain[0]}).size(), 3u);
  EXPECT_GT(ids({.min_length = 7}, {plain[0]}).size(), 3u);
  EXPECT_NE(ids({.begin_suppress_tokens = {plain[0]}})[0], plain[0]);
  for (const int32_t id : ids({.suppress_tokens = {plain[0]}})) EXPECT_NE(id, plain[0]);
  const std::vector<int32_t> once = ids({.no_repeat_ngram_size = 1});
  EXPECT_EQ(std::set<int32_t>(once.begin(), once.end()).size(), once.size());
  for (const int32_t id : prompt) EXPECT_THAT(once, ::testing::Not(::testing::Contains(id)));
  EXPECT_EQ(ids({.repetition_penalty = 1.5F}), ids({.repetition_penalty = 1.5F}));
}

TEST(Generate, ReportsEditsThatForbidEveryToken) {
  Model model = must(Model::load(Folder("").open(), {.threads = 1}));
  LogitEdits all;
  for (int32_t id = 0; id < model.vocab_size(); ++id) all.suppress_tokens.push_back(id);
  const std::vector<int32_t> prompt = {1, 2};
  const auto text = generate(model, prompt, {.edits = all});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().place, "suppress_tokens");
  EXPECT_THAT(text.error().to_string(), HasSubstr("forbid all tokens at position 2"));
}

}  // namespace
}  // namespace moracle::logit_edits_test
