#include "oracle/machine/shared_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace moracle::shared_library_test {
namespace {

using ::testing::HasSubstr;

TEST(SharedLibrary, FindsSymbolsAndNamesTheFirstMissingOne) {
  SharedLibrary library("libc.so.6");
  ASSERT_EQ(library.load_error(), "");
  size_t (*length)(const char*) = nullptr;
  library.find(length, "strlen");
  ASSERT_NE(length, nullptr);
  EXPECT_EQ(length("four"), 4u);
  EXPECT_EQ(library.missing(), "");

  void (*other)() = nullptr;
  library.find(other, "moracle_no_such_symbol");
  library.find(other, "moracle_no_second_symbol");
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(library.missing(), "libc.so.6 has no moracle_no_such_symbol");
}

TEST(SharedLibrary, KeepsTheLoadersMessageAndFindsNothing) {
  SharedLibrary library("libmoracle_no_such_library.so");
  EXPECT_THAT(library.load_error(), HasSubstr("libmoracle_no_such_library.so"));
  void (*function)() = nullptr;
  library.find(function, "strlen");
  EXPECT_EQ(function, nullptr);
}

}  // namespace
}  // namespace moracle::shared_library_test
