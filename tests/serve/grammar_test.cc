// Texts of a schema, drawn from random logits. A build without xgrammar skips these.
#include "serve/grammar/grammar.h"
#include "paths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "serve/grammar/token_bytes.h"
#include "support/must.h"

namespace moracle::serve::grammar_test {
namespace {

using testing::must;

class Grammars : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = GrammarEngine::start(tokenizer_, tokenizer_.vocab_size(), kStops);
    if (!engine && engine.error().kind == ErrorKind::kUnsupported)
      GTEST_SKIP() << engine.error().to_string();
    engine_ = must(std::move(engine));
  }

  // Draws until a stop token, in at most 2,000 steps.
  std::string draw(const Grammar& grammar, uint64_t seed) const {
    const std::unique_ptr<GrammarMatcher> matcher = must(grammar.start());
    std::mt19937_64 random(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < 2000; ++i) {
      std::vector<float> logits(tokenizer_.vocab_size(), 0);
      must(matcher->mask(logits));
      std::vector<int32_t> allowed;
      for (size_t id = 0; id < logits.size(); ++id) {
        if (std::isfinite(logits[id])) allowed.push_back(static_cast<int32_t>(id));
      }
      if (allowed.empty()) break;
      const int32_t id = allowed[random() % allowed.size()];
      must(matcher->accept(id));
      if (id == kStops[0]) return must(tokenizer_.decode(ids, true));
      ids.push_back(id);
    }
    ADD_FAILURE() << "the text does not end";
    return {};
  }

  static constexpr int32_t kStops[] = {2};
  const Tokenizer tokenizer_ =
      must(Tokenizer::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
  std::unique_ptr<GrammarEngine> engine_;
};

TEST_F(Grammars, RandomTokensMakeTextsOfTheSchema) {
  const auto grammar = must(engine_->json_schema(
      R"({"type": "object", "properties": {"z": {"type": "integer"},
          "a": {"enum": ["Köln", "Ulm"]}, "list": {"type": "array", "maxItems": 3,
          "items": {"type": "boolean"}}}, "required": ["z", "a"]})",
      true));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = draw(*grammar, seed);
    const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_TRUE(json["z"].is_number_integer()) << text;
    EXPECT_TRUE(json["a"] == "Köln" || json["a"] == "Ulm") << text;
    EXPECT_EQ(json.begin().key(), "z");
    for (const auto& each : json.value("list", nlohmann::ordered_json::array()))
      EXPECT_TRUE(each.is_boolean()) << text;
    EXPECT_LE(json.size(), 3u) << text;
  }
}

TEST_F(Grammars, TokensOutsideTheGrammarAreRefused) {
  const auto grammar = must(engine_->json_schema(R"({"type": "object"})", false));
  const std::unique_ptr<GrammarMatcher> matcher = must(grammar->start());
  std::vector<float> logits(tokenizer_.vocab_size(), 0);
  must(matcher->mask(logits));
  EXPECT_TRUE(std::isinf(logits[kStops[0]]));
  EXPECT_TRUE(std::isinf(logits[must(tokenizer_.encode("]"))[0]]));
  EXPECT_TRUE(std::isfinite(logits[must(tokenizer_.encode("{"))[0]]));
  EXPECT_FALSE(matcher->accept(must(tokenizer_.encode("]"))[0]).ok());
}

TEST_F(Grammars, WrongSchemaIsRefusedWithTheReason) {
  for (const char* schema : {"{\"type\": 5}", "{\"$ref\": \"#/missing\"}", "not JSON"}) {
    const auto grammar = engine_->json_schema(schema, true);
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_EQ(grammar.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_FALSE(grammar.error().fact.empty());
    EXPECT_EQ(grammar.error().fact.find(".cc:"), std::string::npos) << grammar.error().fact;
  }
}

TEST(TokenBytes, HoldTheTextInsideATextAndNoSpecialTokens) {
  const Tokenizer tokenizer =
      must(Tokenizer::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
  const int64_t size = tokenizer.vocab_size() + 3;
  const std::vector<std::string> texts = must(token_bytes(tokenizer, size));
  ASSERT_EQ(texts.size(), static_cast<size_t>(size));
  EXPECT_EQ(texts[2], "");
  EXPECT_EQ(texts[size - 1], "");
  const std::string text = " And it: came\n";
  std::string joined;
  for (const int32_t id : must(tokenizer.encode(text))) joined += texts[id];
  EXPECT_EQ(joined, text);
}

}  // namespace
}  // namespace moracle::serve::grammar_test
