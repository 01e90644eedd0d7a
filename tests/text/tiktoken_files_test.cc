// Compares tokenizers from tekken.json and tiktoken.model with mistral-common and tiktoken
// (tools/make_tiktoken_golden.py), and tests invalid files.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "moracle/text.h"
#include "paths.h"
#include "support/temporary_folder.h"

namespace moracle::tiktoken_files_test {
namespace {

using nlohmann::json;
using testing::TemporaryFolder;

json golden(const std::string& name) {
  return json::parse(std::ifstream(testing::golden_dir() + "/tokenizer_ranks/" + name + ".json"));
}

void expect_ids(const Tokenizer& tokenizer, const json& cases) {
  ASSERT_GT(cases.size(), 100u);
  for (const json& test : cases) {
    const auto text = test["text"].get<std::string>();
    const auto ids = tokenizer.encode(text);
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(json(*ids), test["ids"]) << text;
    EXPECT_EQ(*tokenizer.decode(*ids), text);
  }
}

TEST(Tekken, IdsMatchMistralCommon) {
  const json made = golden("tekken");
  const TemporaryFolder folder;
  folder.write("tekken.json", made["file"].dump());
  const auto tokenizer = Tokenizer::open(folder.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  expect_ids(*tokenizer, made["cases"]);
  EXPECT_EQ(tokenizer->vocab_size(), 424);
  EXPECT_TRUE(tokenizer->ids_without_token(424).empty());
}

TEST(Tekken, CancelsInsideLongWord) {
  const TemporaryFolder folder;
  folder.write("tekken.json", golden("tekken")["file"].dump());
  const auto tokenizer = Tokenizer::open(folder.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  int calls = 0;
  const auto ids =
      tokenizer->encode(std::string(200'000, 'a'), [&](int64_t, int64_t) { return ++calls < 8; });
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().kind, ErrorKind::kCancelled);
}

TEST(Tekken, EncodesSpecialTokensAndPrependsBosToPrompts) {
  const json made = golden("tekken");
  const TemporaryFolder folder;
  folder.write("tekken.json", made["file"].dump());
  auto tokenizer = Tokenizer::open(folder.path());
  EXPECT_EQ(*tokenizer->encode("[INST]"), std::vector<int32_t>{3});
  EXPECT_EQ(*tokenizer->encode("<SPECIAL_20></s>"), (std::vector<int32_t>{20, 2}));
  EXPECT_EQ(tokenizer->encode_prompt("")->front(), 1);
  EXPECT_EQ(tokenizer->id("[TOOL_CALLS]"), 9);
  EXPECT_TRUE(tokenizer->is_special(9));
  EXPECT_EQ(*tokenizer->decode(std::vector<int32_t>{1, 24 + 'a', 2}, true), "a");

  json named = made["file"];
  named["special_tokens"] = {{{"rank", 5}, {"token_str", "[THINK]"}, {"is_control", true}}};
  folder.write("tekken.json", named.dump());
  tokenizer = Tokenizer::open(folder.path());
  EXPECT_EQ(tokenizer->id("[THINK]"), 5);
  EXPECT_EQ(tokenizer->id("<SPECIAL_1>"), 1);
  EXPECT_TRUE(tokenizer->encode_prompt("")->empty());
}

TEST(Tekken, RejectsInvalidFilesByField) {
  const json good = golden("tekken")["file"];
  const TemporaryFolder folder;
  const auto refusal = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    folder.write("tekken.json", file.dump());
    const auto tokenizer = Tokenizer::open(folder.path());
    EXPECT_FALSE(tokenizer.ok()) << pointer;
    return tokenizer ? std::string() : tokenizer.error().place;
  };
  EXPECT_EQ(refusal("/config", nullptr), "config.pattern");
  EXPECT_EQ(refusal("/config/default_vocab_size", -1), "config.default_vocab_size");
  EXPECT_EQ(refusal("/config/default_vocab_size", 5000), "vocab");
  EXPECT_EQ(refusal("/config/default_num_special_tokens", 425),
            "config.default_num_special_tokens");
  EXPECT_EQ(refusal("/config/pattern", "("), "pattern.Regex");
  EXPECT_EQ(refusal("/vocab/7/rank", 8), "vocab[7]");
  EXPECT_EQ(refusal("/vocab/7/token_bytes", "???"), "vocab[7]");
  EXPECT_EQ(refusal("/vocab/7/token_bytes", "AA=="), "vocab[7]");
  EXPECT_EQ(refusal("/vocab/7/token_bytes", "AAAA"), "vocabulary");
  EXPECT_EQ(refusal("/special_tokens", json::array({{{"rank", 99}, {"token_str", "a"}}})),
            "special_tokens[0].rank");
}

class Tiktoken : public ::testing::Test {
 protected:
  Result<Tokenizer> open() const {
    folder_.write("tiktoken.model", made_["file"].get<std::string>());
    folder_.write("tokenizer_config.json", made_["config"].dump());
    return Tokenizer::open(folder_.path());
  }
  json made_ = golden("kimi");
  const TemporaryFolder folder_;
};

TEST_F(Tiktoken, IdsMatchTiktoken) {
  const auto tokenizer = open();
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  expect_ids(*tokenizer, made_["cases"]);
  EXPECT_EQ(tokenizer->vocab_size(), 420 + 258);
  EXPECT_TRUE(tokenizer->is_special(420));
  EXPECT_FALSE(tokenizer->is_special(423));
  EXPECT_EQ(tokenizer->encode_prompt("a")->size(), 1u);
}

TEST_F(Tiktoken, RejectsUnknownClassesAndInvalidLines) {
  made_["config"]["tokenizer_class"] = "QWenTokenizer";
  auto tokenizer = open();
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(tokenizer.error().place, "tokenizer_class");
  made_ = golden("kimi");
  for (const char* line : {"YQ== 420\n", "YWJj 7\n", "*** 420\n", "YWJj\n", " 420\n"}) {
    made_["file"] = golden("kimi")["file"].get<std::string>() + line;
    tokenizer = open();
    ASSERT_FALSE(tokenizer) << line;
    EXPECT_EQ(tokenizer.error().place, "line 421") << line;
  }
}

TEST(TokenizerFiles, NamesMissingFiles) {
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::open(folder.path());
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().need, "a tokenizer.json, tekken.json or tiktoken.model");
}

}  // namespace
}  // namespace moracle::tiktoken_files_test
