// Tests how messages print untrusted text: options, names and file contents.
#include "base/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace moracle::printable_test {
namespace {

TEST(Printable, KeepsPrintableText) {
  for (const std::string text : {"", "model.layers.0", "a b\\n", "größer → 模型 😀", "'\"%s"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesTerminalControlSequences) {
  const struct {
    std::string text, shown;
  } rows[] = {{"a\nb\r\tc", "a\\nb\\r\\tc"},       {"\x1b[2J", "\\x1b[2J"},
              {std::string("a\0b", 3), "a\\x00b"}, {"\x7f", "\\x7f"},
              {"\xc2\x9b", "\\xc2\\x9b"},           // the control sequence introducer in one
              {"\u202eexe", "\\xe2\\x80\\xaeexe"},  // right to left from here
              {"\u2028", "\\xe2\\x80\\xa8"},       {"\u2066", "\\xe2\\x81\\xa6"}};
  for (const auto& row : rows) EXPECT_EQ(printable(row.text), row.shown);
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  const struct {
    std::string text, shown;
  } rows[] = {{"\xff", "\\xff"},
              {"a\xc3", "a\\xc3"},
              {"\x80z", "\\x80z"},
              {"\xc0\xaf", "\\xc0\\xaf"},                     // longer than it has to be
              {"\xed\xa0\x80", "\\xed\\xa0\\x80"},            // half of a pair
              {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}};  // beyond Unicode
  for (const auto& row : rows) EXPECT_EQ(printable(row.text), row.shown);
}

TEST(Printable, CutsAtCharacterBoundariesAndCountsBytes) {
  EXPECT_EQ(printable("abcd", 4), "abcd");
  EXPECT_EQ(printable("abcde", 4), "abcd… (5 bytes)");
  EXPECT_EQ(printable("abcé", 4), "abc… (5 bytes)");
  EXPECT_EQ(quote("a\n"), "'a\\n'");
  EXPECT_EQ(quote(std::string(100'000, 'x')), "'" + std::string(200, 'x') + "… (100000 bytes)'");
}

}  // namespace
}  // namespace moracle::printable_test
