// Builds short texts without <format>, which g++ 12 lacks.
#pragma once

#include <sstream>
#include <string>

namespace moracle {

/// Joins all arguments, each formatted with operator<<.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

/// "a, b, c"
template <class Range>
std::string join(const Range& range, const char* separator = ", ") {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : range) {
    if (!first) out << separator;
    out << item;
    first = false;
  }
  return std::move(out).str();
}

}  // namespace moracle
