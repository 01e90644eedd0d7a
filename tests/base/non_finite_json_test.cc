// Tests the words that Python writes for numbers that are not finite.
#include "base/json/non_finite_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace moracle::non_finite_json_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

nlohmann::json parsed(const char* text) {
  auto value = nlohmann::json::parse(quote_non_finite(text), nullptr, false);
  restore_non_finite(value);
  return value;
}

TEST(NonFiniteJson, ReadsPythonsWords) {
  const auto value = parsed(R"({"a": [0.0, Infinity], "b": {"c": -Infinity}, "d":NaN})");
  ASSERT_TRUE(value.is_object());
  EXPECT_EQ(value["a"][1].get<double>(), kInfinity);
  EXPECT_EQ(value["b"]["c"].get<double>(), -kInfinity);
  EXPECT_TRUE(std::isnan(value["d"].get<double>()));
}

TEST(NonFiniteJson, LeavesStringsAndNumbers) {
  for (const char* text :
       {R"({"NaN": "Infinity", "a\"": "-Infinity", "b\\": ["NaN\\", -1, 2.5e3]})", R"(["\\\"", 1])",
        "null", ""}) {
    EXPECT_EQ(quote_non_finite(text), text);
  }
}

TEST(NonFiniteJson, KeepsInvalidTextInvalid) {
  for (const char* text : {"{\"a\": Infinit}", "{\"a\": NaN1}", "{\"a\": --Infinity}", "[NaN NaN]",
                           "{\"a\": nan}", "{\"a\": \"Infinity}"})
    EXPECT_TRUE(parsed(text).is_discarded()) << text;
}

TEST(NonFiniteJson, WritesWordsAgain) {
  const std::string text = R"({"a":[0.0,Infinity],"b":-Infinity,"c":NaN,"d":"NaN"})";
  const auto value = nlohmann::ordered_json::parse(quote_non_finite(text));
  EXPECT_EQ(unquote_non_finite(value.dump()), text);
}

}  // namespace
}  // namespace moracle::non_finite_json_test
