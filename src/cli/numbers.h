// Validators of numeric options. CLI11's ranges accept nan, and check a number only after it
// overflowed.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "base/printable.h"
#include "base/text.h"
#include "command.h"

namespace moracle::cli {

/// Accepts decimal digits with an optional minus sign. As an Option::transform, it strips leading
/// zeros: CLI11 reads "010" as octal.
template <class Number = int64_t>
CLI::Validator whole(Number min = std::numeric_limits<Number>::min(),
                     Number max = std::numeric_limits<Number>::max()) {
  const auto check = [min, max](std::string& text) -> std::string {
    Number value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < min || value > max)
      return str("needs a whole number from ", min, " to ", max, "; it is ", quote(text));
    text = std::to_string(value);
    return {};
  };
  const bool bounded = max < std::numeric_limits<Number>::max();
  return CLI::Validator(check, bounded ? str("in [", min, " - ", max, "]") : "");
}

/// Accepts a finite number in [min, max].
inline CLI::Validator number(double min, double max) {
  const auto check = [min, max](std::string& text) -> std::string {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    // Negated, because comparisons with nan are false.
    if (error == std::errc() && stop == end && value >= min && value <= max) return {};
    return str("needs a number from ", min, " to ", max, "; it is ", quote(text));
  };
  return CLI::Validator(check, str("in [", min, " - ", max, "]"));
}

/// Turns decimals with a unit into whole bytes: 1.5GB is 1500000000. False: they are no size.
inline bool whole_bytes(std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || stop == text.data() || stop[-1] == '.') return false;
  std::string unit(stop, end);
  const auto lower = [](unsigned char c) { return static_cast<char>(std::tolower(c)); };
  std::transform(unit.begin(), unit.end(), unit.begin(), lower);
  const size_t power = unit.empty() ? std::string::npos : std::string_view("kmgtp").find(unit[0]);
  const std::string_view rest = std::string_view(unit).substr(power == unit.npos ? 0 : 1);
  if (power == unit.npos || !(rest.empty() || rest == "b" || rest == "i" || rest == "ib"))
    return false;
  const double bytes =
      number * std::pow(rest.starts_with('i') ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  if (!(bytes < 1e18)) return false;
  text = std::to_string(static_cast<int64_t>(std::llround(bytes)));
  return true;
}

/// Accepts a number of bytes with an optional unit, such as `example`; with a unit also decimals,
/// as 6.9GB. Apply it before CLI::AsSizeValue, which accepts signs and too many digits, but whole
/// numbers only: transforms run last to first.
inline CLI::Validator size_in_bytes(const char* example) {
  const auto check = [example](std::string& text) -> std::string {
    constexpr size_t kMostDigits = 18;
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const bool decimal = digits < text.size() && text[digits] == '.';
    if (digits > 0 && digits <= kMostDigits && !decimal) return {};
    if (decimal && whole_bytes(text)) return {};
    return str("needs a number of bytes, such as ", example, "; it is ", quote(text));
  };
  return CLI::Validator(check, "");
}

/// The same, or auto or no value for what is free: -1. `example` as above; alone, without
/// CLI::AsSizeValue.
inline CLI::Validator size_or_free(const char* example) {
  const auto convert = [example](std::string& text) -> std::string {
    if (text.empty() || text == "{}" || text == "auto") {
      text = "-1";
      return {};
    }
    const std::string wrong = size_in_bytes(example)(text);
    return wrong.empty() ? CLI::AsSizeValue(true)(text) : wrong + ", or auto for what is free";
  };
  return CLI::Validator(convert, "");
}

}  // namespace moracle::cli
