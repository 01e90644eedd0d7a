// Checks an error: its kind, and one line with file, place, need and fact.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "moracle/base.h"

namespace moracle::testing {

/// The line must contain all parts, and the error must have a file, a need and a fact.
template <class T>
void expect_error(const Result<T>& result, ErrorKind kind,
                  std::initializer_list<std::string> parts) {
  ASSERT_FALSE(result.ok()) << "accepted, though it should say: " << *parts.begin();
  const Error& error = result.error();
  const std::string line = error.to_string();
  EXPECT_EQ(error.kind, kind) << line;
  EXPECT_FALSE(error.file.empty()) << line;
  EXPECT_FALSE(error.need.empty()) << line;
  EXPECT_FALSE(error.fact.empty()) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  for (const std::string& part : parts) EXPECT_THAT(line, ::testing::HasSubstr(part));
}

template <class T>
void expect_bad(const Result<T>& result, std::initializer_list<std::string> parts) {
  expect_error(result, ErrorKind::kBadFile, parts);
}
template <class T>
void expect_unsupported(const Result<T>& result, std::initializer_list<std::string> parts) {
  expect_error(result, ErrorKind::kUnsupported, parts);
}

}  // namespace moracle::testing
