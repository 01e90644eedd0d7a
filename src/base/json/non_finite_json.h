// Numbers that are not finite: Python's json module writes NaN, Infinity and -Infinity, which JSON
// does not have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moracle {

/// The text with each of these words as a string that only restore_non_finite understands.
std::string quote_non_finite(std::string_view text);
/// Turns those strings of a parsed value into numbers.
void restore_non_finite(nlohmann::json& value);
/// Turns those strings of a text that nlohmann::json wrote into the words again.
std::string unquote_non_finite(std::string text);

}  // namespace moracle
