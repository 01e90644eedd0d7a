// Tests that properties in patterns have the tables of Unicode 16, whatever Oniguruma is installed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/regex/regex.h"
#include "base/regex/regex_properties.h"

namespace moracle::regex_properties_test {
namespace {

bool matches(const char* pattern, const char* text) {
  const auto regex = Regex::compile(pattern, RegexSyntax::kOniguruma);
  EXPECT_TRUE(regex) << pattern;
  RegexScratch scratch(*regex);
  return scratch.matches_start(text, 100);
}

TEST(RegexProperties, FollowUnicode16) {
  // A letter and a Chinese character of Unicode 15, a letter and a digit of 16.
  for (const char* text : {"\U0001E4D0", "\U00031350", "\U00010D65"}) {
    EXPECT_TRUE(matches("\\p{L}", text)) << text;
    EXPECT_TRUE(matches("[^\\P{L}]", text)) << text;
    EXPECT_TRUE(matches("\\w", text)) << text;
    EXPECT_FALSE(matches("\\p{^Letter}", text)) << text;
    EXPECT_FALSE(matches("[^\\s\\p{L}\\p{N}]", text)) << text;
  }
  EXPECT_TRUE(matches("\\p{Han}", "\U00031350"));
  EXPECT_TRUE(matches("\\d", "\U00010D43"));
  EXPECT_FALSE(matches("\\D", "\U00010D43"));
  // A letter of Unicode 17 is unassigned.
  EXPECT_FALSE(matches("\\p{L}", "\uA7CE"));
  EXPECT_TRUE(matches("[^\\s\\p{L}\\p{N}]", "\uA7CE"));
}

TEST(RegexProperties, ReplaceOnlyPropertiesInTables) {
  const std::pair<const char*, const char*> kCases[] = {
      {"\\p{Lu}\\p{ uppercase_letter }", "\\p{moraclelu}\\p{moraclelu}"},
      {"\\P{^M}\\p{^N}", "\\p{moraclem}\\P{moraclen}"},
      {"[\\d\\W]", "[\\p{moraclend}\\P{moracleword}]"},
      {"\\p{Greek}\\pL\\s\\S\\b", "\\p{Greek}\\pL\\s\\S\\b"},
      {"\\\\d\\\\p{L}", "\\\\d\\\\p{L}"},
      {"(?i:\\d)", "(?i:\\p{moraclend})"},
      {"(?D)\\d", "(?D)\\d"},
      {"(?i-W:\\w)", "(?i-W:\\w)"},
      {"\\p{L", "\\p{L"},
      {"\\", "\\"},
  };
  for (const auto& [pattern, own] : kCases) EXPECT_EQ(with_own_properties(pattern), own);
}

}  // namespace
}  // namespace moracle::regex_properties_test
