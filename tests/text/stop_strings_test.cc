#include "text/stop_strings.h"

#include <gtest/gtest.h>

namespace moracle::stop_strings_test {
namespace {

// Visible text for chunks of `size` bytes.
std::string shown(const std::string& text, const std::vector<std::string>& stops, size_t size) {
  StopStrings search(stops);
  std::string all;
  for (size_t at = 0; at < text.size(); at += size) all += search.push(text.substr(at, size));
  return all + search.finish();
}

TEST(StopStrings, TextEndsBeforeFirstStopStringForAnyChunkSize) {
  for (size_t size = 1; size < 20; ++size) {
    EXPECT_EQ(shown("one two three two", {"two", "three"}, size), "one ");
    EXPECT_EQ(shown("aaab", {"aab"}, size), "a");
    EXPECT_EQ(shown("abcabd", {"abd", "cab"}, size), "ab");
    EXPECT_EQ(shown("nothing stops", {"stopped", "things"}, size), "nothing stops");
    EXPECT_EQ(shown("no stops", {}, size), "no stops");
  }
}

TEST(StopStrings, HoldsBackOnlyPrefixesOfStopStrings) {
  StopStrings search({"END", "Nay"});
  EXPECT_EQ(search.push("theE"), "the");
  EXPECT_EQ(search.push("N"), "");
  EXPECT_EQ(search.push("x"), "ENx");
  EXPECT_FALSE(search.found());
  EXPECT_EQ(search.push(" Nay more"), " ");
  EXPECT_TRUE(search.found());
  EXPECT_EQ(search.push("anything"), "");
  EXPECT_EQ(search.finish(), "");
}

TEST(StopStrings, HiddenTextMatchesAndIsNotShown) {
  StopStrings search({"<|end|>", "b<|sep|>c"});
  EXPECT_EQ(search.push("a<|"), "a");
  EXPECT_EQ(search.push("<|other|>", true), "<|");
  EXPECT_EQ(search.push("xb"), "x");
  EXPECT_EQ(search.push("<|sep|>", true), "");
  EXPECT_EQ(search.push("d"), "bd");
  EXPECT_EQ(search.push("b"), "");
  EXPECT_EQ(search.push("<|sep|>", true), "");
  EXPECT_EQ(search.finish(), "b");
  EXPECT_EQ(search.push("more"), "more");
  EXPECT_EQ(search.push("<|end|>", true), "");
  EXPECT_TRUE(search.found());
}

}  // namespace
}  // namespace moracle::stop_strings_test
