// Compares a Tokenizer whose tokenizer_config.json adds tokens with transformers
// (tools/make_added_tokens_golden.py), and tests invalid files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "moracle/text.h"
#include "paths.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::tokenizer_config_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::must;

json golden() {
  std::ifstream in(testing::golden_dir() + "/tokenizer_config/cases.json");
  return json::parse(in, nullptr, false);
}

Result<Tokenizer> open(const json& files) {
  const testing::TemporaryFolder folder;
  for (const auto& [name, content] : files.items()) folder.write(name, content.dump());
  return Tokenizer::open(folder.path());
}

TEST(TokenizerConfig, TokensMatchTransformers) {
  const json all = golden();
  ASSERT_TRUE(all.is_object());
  ASSERT_GT(all["cases"].size(), 20u);
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["name"]);
    const Tokenizer tokenizer = must(open(one["files"]));
    const auto want = one["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(must(tokenizer.encode(one["text"].get<std::string>())), want);
    EXPECT_EQ(tokenizer.eos_id() ? json(*tokenizer.eos_id()) : json(), one["eos_id"]);
    if (!one.contains("without_special")) continue;
    EXPECT_EQ(must(tokenizer.decode(want, true)), one["without_special"].get<std::string>());
  }
}

TEST(TokenizerConfig, RejectsInvalidFilesByName) {
  const json file = golden()["cases"][0]["files"]["tokenizer.json"];
  const std::pair<json, const char*> cases[] = {
      {json::array(), "needs a JSON object"},
      {{{"added_tokens_decoder", json::array()}}, "added_tokens_decoder: needs an object"},
      {{{"added_tokens_decoder", {{"x", {{"content", "<y>"}}}}}}, "needs token ids as keys"},
      {{{"added_tokens_decoder", {{"14", "<y>"}}}}, "added_tokens_decoder.14: needs an object"},
      {{{"added_tokens_decoder", {{"14", {{"content", 5}}}}}}, "14.content: needs"},
      {{{"added_tokens_decoder", {{"14", {{"content", "<y>"}, {"lstrip", 1}}}}}}, "14.lstrip:"},
      {{{"added_tokens_decoder", {{"14", {{"content", std::string(4097, 'a')}}}}}}, "4096 bytes"},
      {{{"additional_special_tokens", "<y>"}}, "additional_special_tokens: needs"},
  };
  for (const auto& [config, message] : cases) {
    const auto tokenizer = open({{"tokenizer.json", file}, {"tokenizer_config.json", config}});
    ASSERT_FALSE(tokenizer.ok()) << config;
    EXPECT_THAT(tokenizer.error().to_string(), HasSubstr(message));
    EXPECT_THAT(tokenizer.error().file, HasSubstr("tokenizer_config.json"));
  }
}

}  // namespace
}  // namespace moracle::tokenizer_config_test
