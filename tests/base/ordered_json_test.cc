#include "base/json/ordered_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "support/must.h"

namespace moracle::ordered_json_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

std::string object_of(size_t members) {
  std::string text;
  for (size_t i = 0; i < members; ++i) text += str(i == 0 ? "{" : ",", "\"k", i, "\":0");
  return text + "}";
}

TEST(OrderedJson, MatchesNlohmannParser) {
  for (const char* text :
       {"{}", "[]", "null", "true", "-1", "18446744073709551615", "1.5e3", R"("\ud83d\ude00")",
        R"({"z": 1, "a": {"y": [1, {}, [], {"b": null, "a": false}], "x": "text"}, "m": -0.0})",
        R"([[[]], {"": {"": 1}}])"}) {
    EXPECT_EQ(must(parse_ordered_json(text)).dump(), nlohmann::ordered_json::parse(text).dump());
  }
}

TEST(OrderedJson, LastDuplicateKeyReplacesFirstInPlace) {
  EXPECT_EQ(
      must(parse_ordered_json(R"({"b": 1, "a": 2, "b": {"c": 3}, "a": 4, "d": 5, "b": 6})")).dump(),
      R"({"b":6,"a":4,"d":5})");
}

TEST(OrderedJson, RejectsObjectWithTooManyMembersByPath) {
  EXPECT_EQ(must(parse_ordered_json(object_of(kMaxJsonMembers))).size(), kMaxJsonMembers);
  const std::string large = object_of(kMaxJsonMembers + 1);
  EXPECT_EQ(parse_ordered_json(large).error().place, "");
  const Error error = parse_ordered_json(R"({"a": [1, {"b": )" + large + "}]}").error();
  EXPECT_EQ(error.place, "a[1].b");
  EXPECT_EQ(error.to_string(), "a[1].b: needs objects of at most 4096 members; it has more");
  EXPECT_FALSE(parse_ordered_json("{" + std::string(50000, ' ') + large.substr(1)));
}

TEST(OrderedJson, RejectsTooManyArraysAndObjects) {
  std::string text = "[";
  for (size_t i = 2; i < kMaxJsonContainers; ++i) text += i % 2 == 0 ? "{}," : "[],";
  EXPECT_TRUE(parse_ordered_json(text + "{}]"));
  EXPECT_THAT(parse_ordered_json(text + "{},[]]").error().need, HasSubstr("131072"));
}

TEST(OrderedJson, RejectsInvalidTextWithByteOffset) {
  EXPECT_THAT(parse_ordered_json(R"({"a": x})").error().fact, HasSubstr("byte 7"));
  EXPECT_THAT(parse_ordered_json("{\"a\": \"\xff\"}").error().need, HasSubstr("UTF-8"));
  EXPECT_THAT(parse_ordered_json("[1e999]").error().need, HasSubstr("doubles"));
  for (const char* text : {"", "{", "[1,]", "{} x", R"({"a")", R"({"a": 1,})"})
    EXPECT_FALSE(parse_ordered_json(text)) << text;
  EXPECT_FALSE(parse_ordered_json(std::string(65, '[') + std::string(65, ']')));
}

}  // namespace
}  // namespace moracle::ordered_json_test
