// Tests constrained decoding with random logits. Skipped in a build without xgrammar.
#include "serve/grammar/grammar.h"
#include "paths.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "serve/dialects/dialects.h"
#include "serve/grammar/schema.h"
#include "serve/grammar/token_bytes.h"
#include "serve/tools/call_grammar.h"
#include "serve/tools/gemma/gemma_grammar.h"
#include "serve/tools/minimax_m3/minimax_m3_schema.h"
#include "serve/tools/tool_dialect.h"
#include "support/must.h"

namespace moracle::serve::grammar_test {
namespace {

using testing::must;

class Grammars : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = GrammarEngine::start(tokenizer_, tokenizer_.vocab_size(), kStops);
    if (!engine && engine.error().need.find("MORACLE_XGRAMMAR") != std::string::npos)
      GTEST_SKIP() << engine.error().to_string();
    engine_ = must(std::move(engine));
  }

  std::shared_ptr<const Grammar> compile(const std::string& schema, bool strict = true) const {
    return must(engine_->compile({.text = must(lower_schema(nlohmann::ordered_json::parse(schema),
                                                            strict, SchemaLimits(), "schema"))}));
  }

  // True if the grammar accepts a complete text.
  bool accepts(const Grammar& grammar, const std::string& text) const {
    const std::unique_ptr<GrammarMatcher> matcher = must(grammar.start());
    for (const int32_t id : must(tokenizer_.encode(text)))
      if (!matcher->accept(id)) return false;
    return allowed(*matcher).allows(kStops[0]);
  }
  TokenMask allowed(GrammarMatcher& matcher) const {
    TokenMask mask(tokenizer_.vocab_size());
    must(matcher.fill(mask));
    mask.settle();
    return mask;
  }

  // Samples until a stop token, in at most 2,000 steps.
  std::string draw(const Grammar& grammar, uint64_t seed) const {
    const std::unique_ptr<GrammarMatcher> matcher = must(grammar.start());
    std::mt19937_64 random(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < 2000; ++i) {
      std::vector<int32_t> next;
      allowed(*matcher).list(next);
      if (next.empty()) break;
      const int32_t id = next[random() % next.size()];
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

TEST_F(Grammars, RandomTokensProduceTextsOfSchema) {
  const auto grammar = compile(
      R"({"type": "object", "properties": {"z": {"type": "integer"},
          "a": {"enum": ["Köln", "Ulm"]}, "list": {"type": "array", "maxItems": 3,
          "items": {"type": "boolean"}}}, "required": ["z", "a"]})");
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

// A mask of a matcher in a text equals what a matcher accepts token by token, also when many
// matchers of one grammar fill their masks on several threads.
TEST_F(Grammars, MasksEqualAcceptedTokensOnManyThreads) {
  const char* const schemas[] = {
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
          "minimum": 0}, "tags": {"type": "array", "items": {"enum": ["a", "ab", "abc"]}}, "at":
          {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
          "required": ["x"]}}, "required": ["name", "age"]})",
      R"({"type": "array", "items": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"},
          {"type": "object"}]}})",
      R"({"type": "string", "pattern": "^([ab]c|[x-z]+)*-[0-9]{2,4}$"})"};
  for (const char* schema : schemas) {
    const auto grammar = compile(schema);
    constexpr size_t kTexts = 12, kThreads = 3;
    std::vector<std::vector<int32_t>> texts(kTexts);  // prefixes of random texts
    std::vector<std::unique_ptr<GrammarMatcher>> matchers(kTexts);
    std::vector<std::vector<int32_t>> masks(kTexts), alone(kTexts);
    for (size_t i = 0; i < kTexts; ++i) {
      std::mt19937_64 random(i);
      matchers[i] = must(grammar->start());
      for (size_t length = 0; length < 2 * i; ++length) {
        allowed(*matchers[i]).list(alone[i]);
        std::erase(alone[i], kStops[0]);
        if (alone[i].empty()) break;
        texts[i].push_back(alone[i][random() % alone[i].size()]);
        must(matchers[i]->accept(texts[i].back()));
      }
      allowed(*matchers[i]).list(alone[i]);
    }
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < kTexts; i += kThreads)
          for (int repeat = 0; repeat < 50; ++repeat) allowed(*matchers[i]).list(masks[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < kTexts; ++i) {
      EXPECT_EQ(masks[i], alone[i]) << schema << i;
      std::vector<int32_t> accepted;
      std::unique_ptr<GrammarMatcher> matcher;
      for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
        if (tokenizer_.is_special(id) && id != kStops[0]) continue;
        if (!matcher) {
          matcher = must(grammar->start());
          for (const int32_t before : texts[i]) must(matcher->accept(before));
        }
        if (!matcher->accept(id)) continue;
        accepted.push_back(id);
        matcher.reset();
      }
      EXPECT_EQ(masks[i], accepted) << schema << i;
    }
  }
}

TEST_F(Grammars, RejectsTokensOutsideGrammar) {
  const auto grammar = must(engine_->compile({.text = R"({"type": "object"})"}));
  const std::unique_ptr<GrammarMatcher> matcher = must(grammar->start());
  const TokenMask mask = allowed(*matcher);
  EXPECT_FALSE(mask.allows(kStops[0]));
  EXPECT_FALSE(mask.allows(must(tokenizer_.encode("]"))[0]));
  EXPECT_TRUE(mask.allows(must(tokenizer_.encode("{"))[0]));
  EXPECT_FALSE(matcher->accept(must(tokenizer_.encode("]"))[0]).ok());
}

TEST_F(Grammars, ReportsReasonOfSchemaRejectedByEngine) {
  for (const char* schema : {R"({"type": 5})", R"({"$ref": "#/missing"})", "not JSON"}) {
    const auto grammar = engine_->compile({.text = schema});
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_EQ(grammar.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_FALSE(grammar.error().fact.empty());
    EXPECT_EQ(grammar.error().fact.find(".cc:"), std::string::npos) << grammar.error().fact;
  }
}

// Each keyword that lower_schema() accepts, with texts on both sides of its limit.
struct Honoured {
  const char* schema;
  std::vector<const char*> follow, violate;
};

TEST_F(Grammars, EveryAcceptedKeywordConstrainsText) {
  const Honoured all[] = {
      {R"({"enum": ["a/b", 1.5, null, {"x": [1]}]})",
       {R"("a/b")", "1.5", "null", R"({"x":[1]})"},
       {R"("a")", "1", "true", "{}"}},
      {R"({"const": "a\n\"b", "type": "string"})", {R"("a\n\"b")"}, {R"("a")"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"null", "0"}},
      {R"({"type": ["integer", "null"], "minimum": 3})", {"3", "null"}, {"2", R"("3")"}},
      {R"({"type": "integer", "minimum": -5, "maximum": 7})", {"-5", "0", "7"}, {"-6", "8", "1.5"}},
      {R"({"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4})",
       {"2", "3"},
       {"1", "4"}},
      {R"({"type": "integer", "multipleOf": 7})", {"0", "-21", "140"}, {"22"}},
      {R"({"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 10})",
       {"6", "9"},
       {"3", "12", "7"}},
      {R"({"type": "number", "minimum": 0.25, "exclusiveMaximum": 10})",
       {"0.25", "9.999"},
       {"0.2", "10", "10.0"}},
      {R"({"type": "number", "exclusiveMinimum": 0.25, "maximum": 10})",
       {"0.26", "10"},
       {"0.25", "10.1"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("äö")", R"("abc")"},
       {R"("a")", R"("abcd")", "\"a\tb\""}},
      {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^[^ä]$"})", {R"("a")"}, {R"("ä")", R"(""")", R"("ab")"}},
      {R"({"type": "string", "pattern": "^(?:ab|c\\.){2}$|x?"})",
       {R"("abc.")", R"("")", R"("x")"},
       {R"("ab")", R"("abcd")"}},
      {R"({"type": "string", "pattern": "\\w+\\s\\S\\u00e4\\D"})",
       {R"("ab xä-")"},
       {R"("ab xä1")", R"("ab  ä-")"}},
      {R"({"type": "string", "format": "date"})", {R"("2020-01-31")"}, {R"("2020-13-01")"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
       {"[1,2]", "[1,2,3]"},
       {"[1]", "[1,2,3,4]", R"(["a","b"])"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]})",
       {R"([1,"x"])"},
       {R"(["x"])", R"([1,"x",2])"}},
      {R"({"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2})",
       {"[1,null]"},
       {"[1]", "[1,2]", "[null,null]"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}},
           "required": ["b"]})",
       {R"({"a":1,"b":[]})", R"({"b":1})"},
       {R"({"a":1})", R"({"a":"x","b":1})", R"({"b":1,"c":1})", "{}"}},
      {R"({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}})",
       {R"({"a":1,"b":null})", R"({"b":null})", "{}"},
       {R"({"b":1})", R"({"a":null})", R"({"\u0061":null})", R"({"a":1,"a":null})"}},
      {R"({"type": "object", "additionalProperties": {"type": "null"}})",
       {R"({"b":null})"},
       {R"({"b":1})"}},
      {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"b":1})"}},
      {R"({"type": "object", "patternProperties": {"^a+$": {"type": "null"}}})",
       {R"({"aa":null})", "{}"},
       {R"({"b":null})", R"({"a":1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["k"]},
           "additionalProperties": {"type": "null"}})",
       {R"({"k":null})"},
       {R"({"j":null})", R"({"k":1})"}},
      {R"({"anyOf": [{"type": "null"}, {"const": 2}]})", {"null", "2"}, {"1"}},
      {R"({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b~1%25"}],
           "$defs": {"a": {"properties": {"k": {"const": 1}}, "required": ["k"]},
                     "b/%": {"properties": {"k": {"enum": [2, 3]}}, "required": ["k"]}}})",
       {R"({"k":1})", R"({"k":3})"},
       {R"({"k":4})", "{}"}},
      {R"({"allOf": [{"type": "null"}], "title": "t", "description": "d", "default": 1})",
       {"null"},
       {"1"}},
      {R"({"type": "object", "properties": {"next": {"anyOf": [{"type": "null"},
           {"$ref": "#"}]}}, "required": ["next"]})",
       {R"({"next":{"next":null}})"},
       {"{}", R"({"next":{}})"}},
  };
  for (const Honoured& each : all) {
    const auto grammar = compile(each.schema);
    for (const char* text : each.follow)
      EXPECT_TRUE(accepts(*grammar, text)) << each.schema << text;
    for (const char* text : each.violate)
      EXPECT_FALSE(accepts(*grammar, text)) << each.schema << text;
  }
}

TEST_F(Grammars, NonStrictSchemaAcceptsOtherMembers) {
  const char* const schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";
  EXPECT_FALSE(accepts(*compile(schema, true), R"({"b":"x"})"));
  EXPECT_TRUE(accepts(*compile(schema, false), R"({"a":1,"b":"x"})"));
  EXPECT_FALSE(accepts(*compile(schema, false), R"({"a":"x"})"));
}

TEST_F(Grammars, EnforcesLengthsAboveRepeatLimit) {
  const auto text = [](size_t size) { return '"' + std::string(size, 'x') + '"'; };
  const auto grammar = compile(R"({"type": "string", "minLength": 140, "maxLength": 280})");
  for (const size_t size : {140, 200, 268, 280}) EXPECT_TRUE(accepts(*grammar, text(size))) << size;
  for (const size_t size : {0, 139, 281}) EXPECT_FALSE(accepts(*grammar, text(size))) << size;
}

TEST_F(Grammars, MissingEngineErrorNamesItsPackages) {
  const auto engine =
      GrammarEngine::start(tokenizer_, tokenizer_.vocab_size(), kStops, "/a/folder/without/it");
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(engine.error().to_string().find("apache-tvm-ffi"), std::string::npos);
  EXPECT_NE(engine.error().to_string().find("/a/folder/without/it"), std::string::npos);
}

TEST_F(Grammars, SchemasAtLimitsCompileInBoundedTime) {
  const auto seconds = [&](const std::string& schema) {
    const auto start = std::chrono::steady_clock::now();
    compile(schema);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const SchemaLimits limits;
  nlohmann::ordered_json members = {{"type", "object"}}, values;
  for (int64_t i = 0; i < limits.optional_members; ++i)
    members["properties"]["member" + std::to_string(i)] = {{"type", "string"}};
  for (int64_t i = 0; i < limits.values; ++i)
    values["enum"].push_back("value number " + std::to_string(i));
  // Generous bound for loaded machines: measured 0.1 to 0.6 s, and 16 s without limits.
  constexpr double kMost = 12;
  EXPECT_LT(seconds(members.dump()), kMost);
  EXPECT_LT(seconds(values.dump()), kMost);
  EXPECT_LT(seconds(R"({"type": "string", "maxLength": 320})"), kMost);
}

TEST(TokenBytes, ContainMidTextBytesAndSkipSpecialTokens) {
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

// The schema of any object, in the form of a format.
std::string any_arguments(const ToolFormat& format) {
  if (format.style == kMiniMaxM3Style) return {};
  if (format.style != kGemmaStyle) return R"({"type": "object"})";
  return must(gemma_grammar(R"({"type": "object", "additionalProperties": {}})", "tools"));
}

// The calls that transformers rendered with each template of tests/golden/chat/tools.json.
TEST_F(Grammars, CallGrammarAcceptsCallsOfEveryTemplate) {
  std::ifstream file(testing::golden_dir() + "/chat/tools.json");
  const auto golden = nlohmann::ordered_json::parse(file, nullptr, false);
  const std::string begin = "<|turn|>assistant\n";
  int num_read = 0;
  for (const auto& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    const ToolDialect dialect =
        find_dialect(must(ChatTemplate::parse(golden["templates"][name]["text"], name)));
    if (!dialect.format || !dialect.syntax) continue;
    SCOPED_TRACE(name);
    const auto whole = test["expected"].get<std::string>();
    const size_t at = whole.find(begin) + begin.size();
    const std::string turn = whole.substr(at, whole.find("<|end|>", at) - at);
    const std::string calls =
        dialect.format->open.empty() ? turn : turn.substr(turn.find(dialect.format->open));
    CallGrammar grammar{.format = *dialect.format,
                        .syntax = *dialect.syntax,
                        .tools = {{"get_weather", any_arguments(*dialect.format)},
                                  {"now", any_arguments(*dialect.format)}}};
    for (const bool is_required : {true, false}) {
      if (!is_required && dialect.format->open.empty()) continue;
      grammar.is_required = is_required;
      grammar.is_single = false;
      const auto compile_tag = [&] {
        return must(engine_->compile({GrammarText::Kind::kStructuralTag, structural_tag(grammar)}));
      };
      const auto many = compile_tag();
      EXPECT_TRUE(accepts(*many, calls)) << calls << structural_tag(grammar);
      EXPECT_EQ(accepts(*many, "I look. " + calls), !is_required);
      EXPECT_EQ(accepts(*many, "I look."), !is_required);
      EXPECT_FALSE(accepts(*many, calls.substr(0, calls.size() - 1)));
      grammar.is_single = true;
      EXPECT_FALSE(accepts(*compile_tag(), calls));
      grammar.is_single = false;
      grammar.tools.pop_back();
      const bool uses_both = calls.find("now") != std::string::npos;
      EXPECT_EQ(accepts(*compile_tag(), calls), !uses_both);
      grammar.tools.push_back({"now", any_arguments(*dialect.format)});
    }
    ++num_read;
  }
  EXPECT_GE(num_read, 20);
}

TEST_F(Grammars, GemmaGrammarHoldsToSchema) {
  const Honoured all[] = {
      {R"({"properties": {"b": {"type": "string"}, "A": {"type": "integer"},
           "c": {"enum": ["x", 5, null, {"k": [true]}]}}, "required": ["b"]})",
       {R"({A:5,b:<|"|>hi, {"x"}<|"|>,c:<|"|>x<|"|>})", R"({b:<|"|><|"|>})",
        R"({b:<|"|>a<b<|c<|"|>,c:5})", R"({b:<|"|>k<|"|>,c:{k:[true]}})"},
       {R"({A:5})", R"({b:<|"|>a<|"|>,A:5})", R"({b:5})", R"({b:<|"|>a<|"|>,d:5})", "{}",
        R"({A:<|"|>5<|"|>,b:<|"|>a<|"|>})", R"({b:<|"|>a<|"|>,})"}},
      {R"({"properties": {"l": {"type": "array", "items": {"type": "boolean"}, "minItems": 1,
           "maxItems": 2}}, "required": ["l"]})",
       {"{l:[true]}", "{l:[true,false]}"},
       {"{l:[]}", "{l:[true,true,true]}", "{l:[5]}"}},
      {R"({"properties": {"s": {"type": "string", "pattern": "^a+b$"}}})",
       {"{}", R"({s:<|"|>aab<|"|>})"},
       {R"({s:<|"|>b<|"|>})", R"({s:<|"|>aabb<|"|>})"}},
      {R"({"properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}})",
       {"{next:{next:null}}", "{}"},
       {"{next:5}"}},
      {R"({"type": "object", "additionalProperties": {"type": "number"}})",
       {"{}", "{a:1.5,b:-2}"},
       {R"({a:<|"|>x<|"|>})"}},
      {R"({"properties": {"any": {}}})",
       {R"({any:{a:[1,<|"|>x<|"|>,null],b:{}}})", "{any:-1.5e3}"},
       {"{any:x}", "{any:[1,]}"}},
  };
  for (const Honoured& each : all) {
    const std::string lowered = must(
        lower_schema(nlohmann::ordered_json::parse(each.schema), true, SchemaLimits(), "schema"));
    const std::string grammar = must(gemma_grammar(lowered, "schema"));
    const nlohmann::ordered_json tag = {{"type", "structural_tag"},
                                        {"format", {{"type", "grammar"}, {"grammar", grammar}}}};
    const auto compiled =
        must(engine_->compile({GrammarText::Kind::kStructuralTag, tag.dump(), "tools"}));
    for (const char* text : each.follow)
      EXPECT_TRUE(accepts(*compiled, text)) << each.schema << text;
    for (const char* text : each.violate)
      EXPECT_FALSE(accepts(*compiled, text)) << each.schema << text;
  }
}

// The grammar engine must take every schema that check_minimax_m3() accepts.
TEST_F(Grammars, MiniMaxM3HoldsToCheckedSchemas) {
  const auto lowered = [](const char* schema) {
    return must(
        lower_schema(nlohmann::ordered_json::parse(schema), true, SchemaLimits(), "schema"));
  };
  const auto element = [](const std::string& name, const std::string& value) {
    return "]<]minimax[>[<" + name + ">" + value + "]<]minimax[>[</" + name + ">";
  };
  const std::string schema = lowered(
      R"({"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer",
          "minimum": 1}, "unit": {"enum": ["C", "F", null]}, "tags": {"type": "array", "items":
          {"type": "string"}}, "inner": {"type": "object", "properties": {"on": {"type":
          ["boolean", "null"]}}}}, "required": ["town"]})");
  must(check_minimax_m3(schema, "schema"));
  const nlohmann::ordered_json tag = {{"type", "structural_tag"},
                                      {"format",
                                       {{"type", "json_schema"},
                                        {"json_schema", nlohmann::ordered_json::parse(schema)},
                                        {"style", std::string(kMiniMaxM3Style)}}}};
  const auto grammar =
      must(engine_->compile({GrammarText::Kind::kStructuralTag, tag.dump(), "tools"}));
  const std::string town = element("town", "K < \"5\"\n");
  EXPECT_TRUE(accepts(*grammar, town));
  EXPECT_TRUE(accepts(*grammar, town + element("days", "2") + element("unit", "C")));
  EXPECT_TRUE(accepts(*grammar, town +
                                    element("tags", element("item", "a") + element("item", "b")) +
                                    element("inner", element("on", "true"))));
  EXPECT_FALSE(accepts(*grammar, element("days", "2")));
  EXPECT_FALSE(accepts(*grammar, town + element("days", "0")));
  EXPECT_FALSE(accepts(*grammar, town + element("unit", "K")));
  EXPECT_FALSE(accepts(*grammar, town + element("other", "a")));
  for (const char* wrong :
       {R"({"type": "object"})", R"({"properties": {"a": {}}})",
        R"({"properties": {"a b": {"type": "string"}}})",
        R"({"properties": {"a": {"enum": [[1]]}}})", R"({"properties": {"a": {"type": "array"}}})"})
    EXPECT_FALSE(check_minimax_m3(lowered(wrong), "schema").ok()) << wrong;
}

TEST(GemmaGrammar, RejectsKeywordsThatItDoesNotExpress) {
  for (const char* schema :
       {R"({"type":"object","properties":{"a":{"type":"integer","minimum":1}}})",
        R"({"type":"object","properties":{"a":{"type":"string","format":"date"}}})",
        R"({"type":"object","properties":{"a b":{"type":"string"}}})"}) {
    const auto grammar = gemma_grammar(schema, "tools[0].parameters");
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_EQ(grammar.error().place, "tools[0].parameters");
  }
}

// The fields of vLLM, through the same path as a request.
TEST_F(Grammars, StructuredOutputsConstrainText) {
  ServedModel model{.tokenizer =
                        must(Tokenizer::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"))};
  model.vocab_size = model.tokenizer.vocab_size();
  model.max_context = 64;
  model.grammars = std::move(engine_);
  const auto read = [&](const std::string& fields) {
    const std::string body = R"({"prompt": "a", )" + fields + "}";
    return read_completion(must(parse_body(body)), body, model);
  };
  struct Constrained {
    const char* fields;
    std::vector<const char*> follow, violate;
  };
  const Constrained all[] = {
      {R"("structured_outputs": {"choice": ["yes", "no", "yes, so"]})",
       {"yes", "no", "yes, so"},
       {"", "maybe", "yes,"}},
      {R"("guided_choice": ["a\"b"])", {"a\"b"}, {"a"}},
      {R"("structured_outputs": {"regex": "[a-c]{2}\\n\"x?"})",
       {"ab\n\"", "cc\n\"x"},
       {"ab", "ad\n\""}},
      {R"("guided_regex": "^\\d+ (?:ok|bad)$")", {"12 ok", "3 bad"}, {"ok", "1 okay"}},
      {R"("structured_outputs": {"grammar": "root ::= \"a\" root \"b\" | \"c\""})",
       {"c", "aacbb"},
       {"acbb", "ac"}},
      {R"("guided_json": {"type": "object", "properties": {"k": {"type": "integer"}},
          "required": ["k"]})",
       {R"({"k": 5})"},
       {"{}", R"({"k": 5, "l": 6})"}},
      {R"("structured_outputs": {"json": "{\"type\": \"boolean\"}"})", {"true"}, {"1"}},
      {R"("structured_outputs": {"json_object": true})", {R"({"a": [1]})"}, {"[]"}},
  };
  for (const Constrained& each : all) {
    const auto grammar = must(model.grammars->compile(must(read(each.fields)).grammar));
    for (const char* text : each.follow)
      EXPECT_TRUE(accepts(*grammar, text)) << each.fields << text;
    for (const char* text : each.violate)
      EXPECT_FALSE(accepts(*grammar, text)) << each.fields << text;
  }
  const std::pair<const char*, const char*> wrong[] = {
      {R"("structured_outputs": 5)", "structured_outputs: needs an object"},
      {R"_("structured_outputs": {"regex": "a(?=b)"})_", "structured_outputs.regex: needs no look"},
      {R"("structured_outputs": {"regex": "(a{128}){128}"})", "structured_outputs.regex: needs"},
      {R"("structured_outputs": {"choice": []})", "structured_outputs.choice: needs 1 to"},
      {R"("structured_outputs": {"choice": ["a", 5]})", "structured_outputs.choice[1]: needs"},
      {R"("structured_outputs": {"grammar": "start: \"a\""})", "structured_outputs.grammar: needs"},
      {R"("structured_outputs": {"structural_tag": "{}"})", "structured_outputs.structural_tag:"},
      {R"("structured_outputs": {"json": {"type": "x"}})", "structured_outputs.json.type: needs"},
      {R"("structured_outputs": {"json": "{"})", "structured_outputs.json: needs a JSON schema"},
      {R"("guided_json": {}, "guided_regex": "a")", "guided_regex: needs no value beside"},
      {R"("guided_regex": "a", "response_format": {"type": "json_object"})", "guided_regex: needs"},
      {R"("guided_regex": "a", "ignore_eos": true)", "ignore_eos: needs false"},
  };
  for (const auto& [fields, message] : wrong) {
    const auto refused = read(fields);
    ASSERT_FALSE(refused.ok()) << fields;
    EXPECT_NE(refused.error().to_string().find(message), std::string::npos)
        << refused.error().to_string();
  }
  for (const char* grammar : {"root ::= x", "x ::= \"a\"", "root ::= \"a"}) {
    const nlohmann::json body = {{"structured_outputs", {{"grammar", grammar}}}};
    const std::string fields = body.dump();
    EXPECT_FALSE(
        model.grammars->compile(must(read(fields.substr(1, fields.size() - 2))).grammar).ok())
        << grammar;
  }
}

TEST_F(Grammars, CallGrammarAcceptsReasoningBeforeRequiredCall) {
  const ToolFormat& hermes = tool_formats()[0];
  const CallSyntax syntax{.head = "<tool_call>\n{\"name\": \"",
                          .middle = "\", \"arguments\": ",
                          .between = {},
                          .tail = "}\n</tool_call>"};
  const CallGrammar grammar{
      .format = hermes,
      .syntax = syntax,
      .tools = {{"f", R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required":
                     ["n"], "additionalProperties": false})"}},
      .is_required = true,
      .is_single = true,
      .reasoning_open = "<think>",
      .reasoning_close = "</think>"};
  const auto compiled =
      must(engine_->compile({GrammarText::Kind::kStructuralTag, structural_tag(grammar)}));
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 5}}\n</tool_call>";
  EXPECT_TRUE(accepts(*compiled, call));
  EXPECT_TRUE(accepts(*compiled, "<think>\nhm\n</think>\n\n" + call));
  EXPECT_FALSE(accepts(*compiled, "<think>\nhm" + call));
  EXPECT_FALSE(accepts(*compiled, "hm" + call));
  EXPECT_FALSE(accepts(*compiled, call + call));
  EXPECT_FALSE(
      accepts(*compiled, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
}

}  // namespace
}  // namespace moracle::serve::grammar_test
