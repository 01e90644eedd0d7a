// Text to and from Oniguruma.
#pragma once

#include <oniguruma.h>

#include <array>
#include <string>
#include <string_view>

namespace moracle {

inline const OnigUChar* regex_units(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

/// Oniguruma's own words for an error code. `info` holds the part of the pattern, if there is one.
inline std::string regex_message(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = onig_error_code_to_str(text.data(), code, info);
  return {reinterpret_cast<const char*>(text.data()), static_cast<size_t>(length)};
}

}  // namespace moracle
