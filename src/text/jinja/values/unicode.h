// Python's str operations on characters, for UTF-8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moracle::jinja {

/// The character at byte `at` of valid UTF-8, and its length in bytes.
struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 1;
};
CodePoint code_point(std::string_view text, size_t at);

/// Number of characters.
size_t count_code_points(std::string_view text);
/// Size in bytes of the first `count` characters, or of all if there are fewer.
size_t bytes_of_code_points(std::string_view text, size_t count);

/// str.isspace() and str.isprintable() of one character.
bool is_space(uint32_t value);
bool is_printable(uint32_t value);
/// A letter with upper and lower case.
bool is_cased(uint32_t value);
/// True for the line boundaries of str.splitlines().
bool is_line_break(uint32_t value);

/// str.strip(), lstrip() and rstrip(). Without `chars`, strips white space.
enum class Side { kBoth, kLeft, kRight };
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> chars = std::nullopt);

/// Maps the case. Returns nothing for a character that maps to several (such as 'ß'): that needs
/// tables which this code lacks.
enum class Case { kUpper, kLower, kTitle };
std::optional<std::string> change_case(std::string_view text, Case to);

}  // namespace moracle::jinja
