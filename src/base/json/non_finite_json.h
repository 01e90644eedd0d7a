// Numbers that are not finite: Python's json module writes NaN, Infinity and -Infinity, which JSON
// does not have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moracle {

/// Replaces each such word by a marked string, which restore_non_finite() turns into a number.
std::string quote_non_finite(std::string_view text);
/// Turns the marked strings of a parsed value into numbers, and transformers' {"__float__": …}.
void restore_non_finite(nlohmann::json& value);
/// Turns the marked strings of text that nlohmann::json wrote back into the words.
std::string unquote_non_finite(std::string text);

}  // namespace moracle
