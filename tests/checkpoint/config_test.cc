#include "checkpoint/config.h"

#include <limits>
#include <string>

#include "base/text.h"
#include "expect_error.h"
#include "support/must.h"
#include "synthetic_checkpoint.h"

namespace moracle::config_test {
namespace {

using testing::expect_bad;
using testing::expect_error;
using testing::expect_unsupported;
using testing::TemporaryFolder;

Config parsed(const std::string& text) {
  return testing::must(Config::parse(text, "dir/config.json"));
}

TEST(Config, ReadsEveryTypeOfValue) {
  const Config config = parsed(
      R"({"i": 3, "d": 0.5, "whole": 2, "b": true, "t": "x", "is": [1, 2], "ts": ["a", "b"], "o": {"k": 7}})");
  EXPECT_EQ(*config.integer({"i"}), 3);
  EXPECT_EQ(*config.number_or(9, {"d"}), 0.5);
  EXPECT_EQ(*config.number_or(9, {"whole"}), 2);
  EXPECT_TRUE(*config.boolean_or(false, {"b"}));
  EXPECT_EQ(*config.text({"t"}), "x");
  EXPECT_EQ(*config.integers({"is"}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*config.texts({"ts"}), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*(*config.object({"o"}))->integer({"k"}), 7);
}

TEST(Config, ReadsOneIntegerAsListOfOne) {
  EXPECT_EQ(*parsed(R"({"eos_token_id": 2})").integers({"eos_token_id"}),
            (std::vector<int64_t>{2}));
}

// Python writes such numbers. A key that nothing reads does not matter.
TEST(Config, RejectsNonFiniteNumberOnlyWhereItIsRead) {
  const Config config =
      parsed(R"({"limits": [0.0, Infinity], "theta": NaN, "count": -Infinity, "k": 3})");
  EXPECT_EQ(*config.integer({"k"}), 3);
  expect_bad(config.number_or(1, {"theta"}),
             {"dir/config.json: theta: needs a finite number; it is NaN"});
  expect_bad(config.number_or(1, {"count"}), {"count: needs a finite number; it is -Infinity"});
  expect_bad(config.integer({"count"}), {"needs a whole number", "it is -Infinity"});
  expect_bad(config.integers({"limits"}), {"limits: needs whole numbers; it has 0.0"});
}

TEST(Config, UsesFirstKeyPresent) {
  const Config::Keys keys = {"num_experts", "num_local_experts"};
  EXPECT_EQ(*parsed(R"({"num_experts": 4})").integer(keys), 4);
  EXPECT_EQ(*parsed(R"({"num_local_experts": 5})").integer(keys), 5);
  EXPECT_EQ(*parsed(R"({"num_local_experts": 5, "num_experts": 4})").integer(keys), 4);
  EXPECT_EQ(*parsed(R"({"num_experts": null, "num_local_experts": 5})").integer(keys), 5);
}

TEST(Config, TreatsNullAsAbsent) {
  for (const char* text : {"{}", R"({"k": null})"}) {
    const Config config = parsed(text);
    EXPECT_FALSE(config.has({"k"}));
    EXPECT_EQ(*config.integer_or(3, {"k"}), 3);
    EXPECT_EQ(*config.number_or(0.5, {"k"}), 0.5);
    EXPECT_TRUE(*config.boolean_or(true, {"k"}));
    EXPECT_EQ(*config.text_or("x", {"k"}), "x");
    EXPECT_TRUE(config.integers({"k"})->empty());
    EXPECT_TRUE(config.texts({"k"})->empty());
    EXPECT_FALSE(config.object({"k"})->has_value());
    expect_bad(config.integer({"k"}, 1, 9),
               {"dir/config.json: k: needs a whole number from 1 to 9; it is missing"});
    expect_bad(config.text({"k"}), {"dir/config.json: k: needs a string; it is missing"});
  }
}

TEST(Config, NamesMissingKeyInEveryDialect) {
  expect_bad(parsed("{}").integer({"num_experts", "num_local_experts"}),
             {"num_experts or num_local_experts: needs a whole number"});
}

TEST(Config, RejectsValueOfWrongTypeAndShowsIt) {
  for (const char* value : {"\"3\"", "3.0", "true", "[3]", "{\"a\":3}"}) {
    const Config config = parsed(str("{\"k\":", value, "}"));
    expect_bad(config.integer({"k"}),
               {"config.json: k: needs a whole number from 0 to 2147483647", str("it is ", value)});
  }
  for (const char* value : {"3", "true", "[\"a\"]", "{}"}) {
    const Config config = parsed(str("{\"k\":", value, "}"));
    expect_bad(config.text({"k"}), {"k: needs a string", str("it is ", value)});
    expect_bad(config.text_or("x", {"k"}), {"k: needs a string", str("it is ", value)});
  }
  const Config config =
      parsed(R"({"n": 1, "t": "true", "mixed": [1, "a"], "big": [18446744073709551615]})");
  expect_bad(config.boolean_or(false, {"n"}), {"n: needs true or false; it is 1"});
  expect_bad(config.boolean_or(false, {"t"}), {"t: needs true or false; it is \"true\""});
  expect_bad(config.number_or(0, {"t"}), {"t: needs a number; it is \"true\""});
  expect_bad(config.object({"n"}), {"n: needs an object; it is 1"});
  expect_bad(config.texts({"t"}), {"t: needs an array of strings; it is \"true\""});
  expect_bad(config.texts({"mixed"}), {"mixed: needs an array of strings; it has 1"});
  expect_bad(config.integers({"mixed"}), {"mixed: needs whole numbers; it has \"a\""});
  expect_bad(config.integers({"big"}), {"big: needs whole numbers; it has 18446744073709551615"});
}

TEST(Config, RejectsNumberOutOfRange) {
  for (const char* value : {"-1", "0", "10", "9223372036854775807", "9223372036854775808",
                            "18446744073709551615", "-9223372036854775808"}) {
    expect_bad(parsed(str("{\"k\":", value, "}")).integer({"k"}, 1, 9),
               {"k: needs a whole number from 1 to 9", str("it is ", value)});
  }
  // The JSON library reads a number beyond 64 bits as floating-point.
  expect_bad(parsed("{\"k\":99999999999999999999999}").integer({"k"}, 1, INT64_MAX),
             {"k: needs a whole number", "it is 9.99"});
  const Config config = parsed(R"({"k": 9223372036854775808, "m": 9223372036854775807})");
  expect_bad(config.integer({"k"}, INT64_MIN, INT64_MAX), {"it is 9223372036854775808"});
  EXPECT_EQ(*config.integer({"m"}, INT64_MIN, INT64_MAX), INT64_MAX);
}

TEST(Config, RejectsTextThatIsNotAJsonObject) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("{\"a\":1,}"), std::string("{} {}"),
        std::string("{\"a\":1e400}"), std::string("{\"a\":nan}"), std::string("{\"a\":\"\xff\"}"),
        std::string("{\"a\":1}\0", 8), std::string("{\"a\0b\":1}", 9), std::string("// c\n{}")}) {
    expect_bad(Config::parse(text, "dir/config.json"), {"dir/config.json: ", "needs valid JSON; "});
  }
  for (const char* text : {"[]", "3", "\"x\"", "null", "true"}) {
    expect_bad(Config::parse(text, "dir/config.json"),
               {"dir/config.json: needs a JSON object; it is ", text});
  }
}

TEST(Config, NamesLineAndColumnOfSyntaxError) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\n  \"a\": 1,\n}", "line 3, column 1: needs valid JSON; found a syntax error while "},
      {"{\"a\": 1 \"b\": 2}", "line 1, column 11: needs valid JSON; found a syntax error while "},
      {"{\"a\": \"ä\", b}", "line 1, column 12: "},
      {"{\r\n\"a\": [1, 2\r\n}\r\n", "line 3, column 1: "},
      {"", "line 1, column 1: needs valid JSON; the file is empty"},
      {"{\"a\": NaN \"b\": 2}", "line 1, column 13: needs valid JSON; found a syntax error while "},
      {"[-Infinity, NaN NaN]", "line 1, column 19: "},
  };
  for (const auto& [text, line] : cases)
    expect_bad(Config::parse(text, "config.json"), {std::string("config.json: ") + line});
}

TEST(Config, SkipsByteOrderMark) {
  EXPECT_EQ(*parsed("\xef\xbb\xbf{\"k\":1}").integer({"k"}), 1);
}

TEST(Config, BoundsNesting) {
  auto nested = [](int levels) {
    return "{\"k\":" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  expect_bad(parsed(nested(60)).integer({"k"}), {"k: needs a whole number"});
  for (const int levels : {100, 1'000'000}) {
    expect_bad(Config::parse(nested(levels), "dir/config.json"),
               {"dir/config.json: needs JSON of at most 64 levels of nesting; it has more"});
  }
}

TEST(Config, ShortensLongValueInMessage) {
  const std::string value(100'000, 'x');
  const auto error = parsed("{\"k\":\"" + value + "\"}").integer({"k"});
  expect_bad(error, {"k: needs a whole number", "it is \"xxx", "..."});
  EXPECT_LT(error.error().to_string().size(), 200u);
}

TEST(Config, ShowsValueInAscii) {
  expect_bad(parsed("{\"k\":\"\xc3\xa9\\u0000\\n\"}").integer({"k"}),
             {"it is \"\\u00e9\\u0000\\n\""});
}

TEST(Config, NamesNestedKeyWithItsPath) {
  const Config config = parsed(R"({"quantization_config": {"weights": {"bits": "4"}}})");
  const Config weights = **(*config.object({"quantization_config"}))->object({"weights"});
  expect_bad(weights.integer({"bits"}),
             {"dir/config.json: quantization_config.weights.bits: needs a whole number"});
  expect_unsupported(Status(weights.unsupported({"bits"}, "4 or 8", "it is 3")),
                     {"dir/config.json: quantization_config.weights.bits: needs 4 or 8; it is 3"});
}

TEST(Config, ListsKeysThatNoCallHasRead) {
  const Config config = parsed(
      R"({"a": 1, "b": 2, "none": null, "whole": {"x": 1}, "opened": {"y": 1, "z": {"u": 1}}})");
  using Names = std::vector<std::string>;
  EXPECT_EQ(config.unread(), (Names{"a", "b", "opened", "whole"}));
  ASSERT_TRUE(config.integer({"absent", "a"}).ok());
  ASSERT_NE(config.find({"whole"}), nullptr);  // as JSON, with all that is inside
  const auto opened = config.object({"opened"});
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(config.unread(), (Names{"b"}));  // nothing inside is read by key
  const auto copy = **opened;
  ASSERT_TRUE(copy.integer({"y"}).ok());
  EXPECT_EQ(config.unread(), (Names{"b", "opened.z"}));
  EXPECT_EQ(copy.unread(), (Names{"opened.z"}));
}

TEST(Config, ReportsUnreadableFile) {
  const TemporaryFolder folder;
  expect_error(Config::open(folder.path() + "/config.json"), ErrorKind::kIo,
               {folder.path() + "/config.json: needs a readable file; No such file or directory"});
  expect_bad(Config::open(folder.path()), {folder.path() + ": needs a regular file"});
  expect_bad(Config::open(folder.write("empty.json", "")),
             {"empty.json: line 1, column 1: needs valid JSON; the file is empty"});
}

}  // namespace
}  // namespace moracle::config_test
