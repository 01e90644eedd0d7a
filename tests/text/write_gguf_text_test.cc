// Writes tokenizers as metadata of GGUF files and reads them back.
#include "text/gguf/write_gguf_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/try.h"
#include "checkpoint/expect_error.h"
#include "paths.h"
#include "support/must.h"
#include "support/temporary_folder.h"
#include "text/gguf/gguf_text.h"

namespace moracle::write_gguf_text_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::must;

json golden(const std::string& name) {
  return json::parse(std::ifstream(testing::golden_dir() + "/tokenizer/" + name + ".json"));
}

class WriteGgufText : public ::testing::Test {
 protected:
  Result<WrittenGgufText> write(const json& tokenizer, int64_t more = 0,
                                const std::vector<int32_t>& ends = {}) const {
    folder_.write("model/tokenizer.json", tokenizer.dump());
    MORACLE_TRY(const Tokenizer source, Tokenizer::open(path_));
    return write_gguf_text(path_, source.vocab_size() + more, ends);
  }
  static json tokenizer_of(const std::string& name) { return golden(name)["tokenizer"]; }
  static json byte_level() {
    json tokenizer = tokenizer_of("qwen");
    tokenizer["normalizer"] = nullptr;
    return tokenizer;
  }

  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/model";
};

TEST_F(WriteGgufText, ByteLevelBpeKeepsTextsMergesAndIds) {
  const WrittenGgufText written = must(write(byte_level(), 3));
  EXPECT_THAT(written.left_out, IsEmpty());
  const json& metadata = written.metadata;
  EXPECT_EQ(metadata["general.name"], "model");
  EXPECT_EQ(metadata["tokenizer.ggml.model"], "gpt2");
  EXPECT_EQ(metadata["tokenizer.ggml.pre"], "qwen2");
  EXPECT_EQ(metadata["tokenizer.ggml.add_bos_token"], false);
  const json& tokens = metadata["tokenizer.ggml.tokens"];
  const json vocabulary = byte_level()["model"]["vocab"];
  for (const auto& [text, id] : vocabulary.items()) EXPECT_EQ(tokens[id.get<size_t>()], text);
  // Rows of the embedding without a token.
  EXPECT_EQ(metadata["tokenizer.ggml.token_type"].back(), 5);
  EXPECT_EQ(tokens.back(), "[PAD" + std::to_string(tokens.size() - 1) + "]");
  const Tokenizer read = make_tokenizer(must(read_gguf_tokenizer(metadata, "model.gguf"))),
                  source = must(Tokenizer::open(path_));
  const json cases = golden("qwen")["cases"];
  ASSERT_FALSE(cases.empty());
  for (const json& one : cases) {
    const auto text = one["text"].get<std::string>();
    EXPECT_EQ(must(read.encode(text)), must(source.encode(text))) << text;
  }
}

TEST_F(WriteGgufText, NfcIsLeftOutAndSaid) {
  const WrittenGgufText written = must(write(tokenizer_of("qwen")));
  EXPECT_EQ(written.metadata["tokenizer.ggml.pre"], "qwen2");
  EXPECT_THAT(written.left_out, ElementsAre(HasSubstr("NFC")));
}

TEST_F(WriteGgufText, SpecialTokensGetRoles) {
  json tokenizer = byte_level();
  const int64_t next = must(write(tokenizer)).metadata["tokenizer.ggml.tokens"].size();
  const auto add = [&](const char* text, int64_t id, bool special) {
    tokenizer["added_tokens"].push_back({{"id", id},
                                         {"content", text},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", special}});
  };
  add("<start>", next, true);
  add("<stop>", next + 1, true);
  add("<turn>", next + 2, false);
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<start>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<start>", {{"id", "<start>"}, {"ids", {next}}, {"tokens", {"<start>"}}}}}}};
  folder_.write(
      "model/tokenizer_config.json",
      R"({"bos_token": "<start>", "eos_token": "<stop>", "chat_template": "{{ bos_token }}"})");
  const auto turn = static_cast<int32_t>(next + 2);
  const json metadata = must(write(tokenizer, 0, {turn})).metadata;
  EXPECT_EQ(metadata["tokenizer.ggml.bos_token_id"], next);
  EXPECT_EQ(metadata["tokenizer.ggml.eos_token_id"], next + 1);
  EXPECT_EQ(metadata["tokenizer.ggml.eot_token_id"], next + 2);
  EXPECT_EQ(metadata["tokenizer.ggml.add_bos_token"], true);
  EXPECT_EQ(metadata["tokenizer.chat_template"], "{{ bos_token }}");
  const json& types = metadata["tokenizer.ggml.token_type"];
  EXPECT_EQ(types[next], 3);
  EXPECT_EQ(types[next + 2], 4);
}

// The tokenizer.json that transformers makes of a SentencePiece vocabulary.
json json_of_sentence_piece(const json& metadata) {
  const json &tokens = metadata["tokenizer.ggml.tokens"],
             &scores = metadata["tokenizer.ggml.scores"],
             &types = metadata["tokenizer.ggml.token_type"];
  json vocabulary = json::object(), added = json::array(), merges = json::array();
  std::vector<size_t> order;
  for (size_t id = 0; id < tokens.size(); ++id) {
    vocabulary[tokens[id].get<std::string>()] = id;
    if (types[id] == 1) order.push_back(id);
    if (types[id] == 1 || types[id] == 6) continue;
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"special", types[id] != 4},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return scores[a].get<double>() > scores[b].get<double>();
  });
  for (const size_t id : order) {
    const auto text = tokens[id].get<std::string>();
    for (size_t at = 1; at < text.size(); ++at) {
      if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
      const std::string left = text.substr(0, at), right = text.substr(at);
      if (vocabulary.contains(left) && vocabulary.contains(right)) merges.push_back({left, right});
    }
  }
  const json space = {{"String", "▁"}};
  return {{"added_tokens", added},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", space}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", merges},
            {"byte_fallback", true},
            {"fuse_unk", true},
            {"unk_token", "<unk>"}}}};
}

// Renames tokens with a character that is no token. SentencePiece merges such characters, but no
// merge of a tokenizer.json can name them.
void drop_tokens_without_characters(json& tokens) {
  std::set<std::string> known;
  for (const json& token : tokens) known.insert(token.get<std::string>());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto text = tokens[id].get<std::string>();
    for (size_t at = 0, end; at < text.size(); at = end) {
      end = at + 1;
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
      if (!known.contains(text.substr(at, end - at)) && !text.starts_with('<'))
        tokens[id] = "[GONE" + std::to_string(id) + "]";
    }
  }
}

TEST_F(WriteGgufText, MergesOfSentencePieceBecomeScoresInTheirOrder) {
  const json golden_files =
      json::parse(std::ifstream(testing::golden_dir() + "/tokenizer_gguf/cases.json"));
  json from = golden_files["files"]["llama"];
  drop_tokens_without_characters(from["tokenizer.ggml.tokens"]);
  json& scores = from["tokenizer.ggml.scores"];  // merges cannot have equal ranks
  for (size_t id = 0; id < scores.size(); ++id) scores[id] = -static_cast<double>(id);
  const json written = must(write(json_of_sentence_piece(from))).metadata;
  EXPECT_EQ(written["tokenizer.ggml.model"], "llama");
  EXPECT_EQ(written["tokenizer.ggml.add_space_prefix"], true);
  EXPECT_EQ(written["tokenizer.ggml.tokens"], from["tokenizer.ggml.tokens"]);
  EXPECT_EQ(written["tokenizer.ggml.token_type"], from["tokenizer.ggml.token_type"]);
  const Tokenizer want = make_tokenizer(must(read_gguf_tokenizer(from, "from.gguf"))),
                  got = make_tokenizer(must(read_gguf_tokenizer(written, "to.gguf")));
  ASSERT_FALSE(golden_files["texts"].empty());
  for (const json& one : golden_files["texts"]) {
    const auto text = one.get<std::string>();
    EXPECT_EQ(must(got.encode(text)), must(want.encode(text))) << text;
  }
  json lacking = json_of_sentence_piece(from);
  json& merges = lacking["model"]["merges"];
  const auto token = [](const json& pair) {
    return pair[0].get<std::string>() + pair[1].get<std::string>();
  };
  size_t second = 1;  // another pair that makes the same token
  while (second < merges.size() && token(merges[second]) != token(merges[second - 1])) ++second;
  ASSERT_LT(second, merges.size());
  merges.erase(second);
  expect_error(write(lacking), ErrorKind::kUnsupported,
               {"model.merges", "every pair of tokens that make a token"});
}

TEST_F(WriteGgufText, FolderWithoutTokenizerGivesModelNone) {
  folder_.write("model/config.json", "{}");
  const WrittenGgufText written = must(write_gguf_text(path_, 7, {}));
  EXPECT_EQ(written.metadata["tokenizer.ggml.model"], "none");
  EXPECT_THAT(written.left_out, ElementsAre(HasSubstr("the folder has none")));
  folder_.write("model/tekken.json", "{}");
  expect_error(write_gguf_text(path_, 7, {}), ErrorKind::kUnsupported,
               {"tekken.json", "a tokenizer.json, to write GGUF"});
}

TEST_F(WriteGgufText, NamesWhatGgufCannotExpress) {
  const auto refuse = [&](const json& tokenizer, const std::string& place,
                          const std::string& need) {
    SCOPED_TRACE(place);
    expect_error(write(tokenizer), ErrorKind::kUnsupported,
                 {path_ + "/tokenizer.json", place, need});
  };
  refuse(tokenizer_of("unigram"), "model.type", "needs BPE");
  refuse(tokenizer_of("digit_runs"), "normalizer", "no normalizer, NFC, or ▁ for spaces");
  refuse(tokenizer_of("next"), "pre_tokenizer", "the expressions of a pre-tokenizer of GGUF");
  json tokenizer = byte_level();
  tokenizer["model"]["ignore_merges"] = true;
  refuse(tokenizer, "model.ignore_merges", "false, as for all pre-tokenizers");
  tokenizer = byte_level();
  ASSERT_FALSE(tokenizer["added_tokens"].empty());
  tokenizer["added_tokens"][0]["lstrip"] = true;
  refuse(tokenizer, "added token", "lstrip is 1");
  tokenizer = byte_level();
  expect_error(write(tokenizer, -1), ErrorKind::kUnsupported, {"the rows of the embedding"});
}

}  // namespace
}  // namespace moracle::write_gguf_text_test
