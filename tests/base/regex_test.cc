// Compiles and matches regular expressions within limits. The goldens of tests/text compare texts
// with Hugging Face tokenizers.
#include "base/regex/regex.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"

namespace moracle::regex_test {
namespace {

Regex compiled(std::string_view pattern, RegexSyntax syntax = RegexSyntax::kOniguruma) {
  auto regex = Regex::compile(pattern, syntax);
  EXPECT_TRUE(regex) << pattern << ": " << regex.error().to_string();
  return *std::move(regex);
}

/// The parts of `text`, with matches in brackets.
std::string cut(const Regex& regex, const std::string& text) {
  std::vector<RegexSpan> spans;
  const Status status = RegexScratch(regex).cut(text, spans);
  if (!status) return status.error().to_string();
  std::string marked;
  for (const auto& [range, matched] : spans) {
    const std::string span = text.substr(range.begin, range.end - range.begin);
    marked += matched ? str('[', span, ']') : span;
  }
  return marked;
}

std::string refusal(std::string_view pattern, RegexSyntax syntax = RegexSyntax::kOniguruma) {
  const auto regex = Regex::compile(pattern, syntax);
  if (regex) return "compiled";
  EXPECT_EQ(regex.error().kind, ErrorKind::kUnsupported);
  return regex.error().to_string();
}

TEST(Regex, ReadsOnigurumaSyntax) {
  const struct {
    const char* pattern;
    const char* text;
    const char* spans;
  } cases[] = {
      {"\\p{N}{1,3}+", "x12345", "x[12345]"},  // repeats the repeat
      {"a{2}?", "aab", "[aa]b[]"},             // optional
      {"a{2,3}?", "aaaaa", "[aa][aa]a"},
      {"a{,3}", "aaaa", "[aaa][a]"},
      {"a{x", "a{x", "[a{x]"},
      {"[a-z&&[^b]]+", "abc", "[a]b[c]"},
      {"\\h+", "xffg", "x[ff]g"},
      {"\\v", "\v\n", "[\v]\n"},
      {"(?m:.)", "\n", "[\n]"},
      {"^b$", "a\nb\n", "a\n[b]\n"},
      {"(?i:ss)", "\u00df", "[\u00df]"},
      {"\\p{Greek}+", "a\u03b1\u03b2", "a[\u03b1\u03b2]"},
      {"\\s", "\u180e\u00a0", "\u180e[\u00a0]"},
      {"(a|b)\\1", "abba", "a[bb]a"},
      {"(?<=\u00e9)", "\u00e9\u00e9", "\u00e9[]\u00e9[]"},
  };
  for (const auto& [pattern, text, spans] : cases) {
    EXPECT_EQ(cut(compiled(pattern), text), spans) << pattern;
  }
}

TEST(Regex, LiteralMatchesItself) {
  EXPECT_EQ(cut(compiled("a.\\b*", RegexSyntax::kLiteral), "a.\\b* axb"), "[a.\\b*] axb");
}

TEST(Regex, ErrorGivesReasonOfOniguruma) {
  const char* const cases[][2] = {{"(", "end pattern with unmatched parenthesis"},
                                  {"a)", "unmatched close parenthesis"},
                                  {"[a", "premature end of char-class"},
                                  {"+a", "target of repeat operator is not specified"},
                                  {"\\p{Nope}", "invalid character property name {Nope}"},
                                  {"\\", "end pattern at escape"},
                                  {"(a)\\2", "invalid backref number/name"},
                                  {"\xc3", "invalid code point value"}};
  for (const auto& [pattern, reason] : cases) {
    EXPECT_EQ(refusal(pattern),
              str("needs a regular expression that Oniguruma can compile; ", reason));
  }
}

TEST(Regex, RejectsPatternThatIsSlowToCompile) {
  EXPECT_NE(refusal("(?<a>b){0}\\g<a>").find("without subexpression calls"), std::string::npos);
  EXPECT_EQ(cut(compiled("\\\\g"), "\\g"), "[\\g]");
  EXPECT_NE(refusal(std::string(16385, 'a')).find("up to 16384 bytes"), std::string::npos);
  for (const RegexSyntax syntax : {RegexSyntax::kOniguruma, RegexSyntax::kPython}) {
    const std::string deep = std::string(1000, '(') + std::string(1000, ')');
    EXPECT_NE(refusal(deep, syntax).find("parse depth limit over"), std::string::npos);
  }
}

TEST(Regex, StopsSearchThatTakesTooLong) {
  EXPECT_EQ(cut(compiled("(?:a|aa)+[xy]"), std::string(60, 'a')),
            "needs a text that Oniguruma can match within its limits; retry-limit-in-match over");
}

// Each search is short, all of them together are not.
TEST(Regex, StopsManySlowSearches) {
  const Regex regex = compiled("(?:a|aa){1,24}[xy]|a");
  const std::clock_t start = std::clock();
  EXPECT_NE(cut(regex, std::string(100'000, 'a')).find("limit-in-match over"), std::string::npos);
  EXPECT_LT(std::clock() - start, std::clock_t{20} * CLOCKS_PER_SEC);
}

TEST(Regex, ReportsOverlappingMatches) {
  EXPECT_NE(cut(compiled(".(?<=\\Ka.)"), "aaa").find("matches overlap"), std::string::npos);
}

TEST(Regex, MatchesStartWithinLimit) {
  const Regex regex = compiled("a+b|(?:a|aa)+[xy]", RegexSyntax::kPython);
  EXPECT_TRUE(RegexScratch(regex).matches_start("aabc", 1000));
  EXPECT_FALSE(RegexScratch(regex).matches_start("caab", 1000));
  EXPECT_FALSE(RegexScratch(regex).matches_start(std::string(60, 'a'), 1000));
  EXPECT_FALSE(RegexScratch(compiled(".", RegexSyntax::kPython)).matches_start("\xc3", 1000));
}

TEST(Regex, MatchesFromSeveralThreads) {
  const Regex regex = compiled("(\\w)\\1+|\\s+(?!\\S)|\\s+");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&regex, &count] {
      for (int i = 0; i < 200; ++i) {
        count += cut(regex, "aabb  c") != "[aa][bb][ ][ ]c";
        count += cut(compiled("b+"), "abb") != "a[bb]";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace moracle::regex_test
