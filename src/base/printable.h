// Makes text from users and files safe for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moracle {

/// `text` on one line. Line breaks, control characters, marks that reorder text and invalid UTF-8
/// bytes are escaped as \n, \x1b and so on. Text beyond `most` bytes is cut, and its length is
/// appended.
std::string printable(std::string_view text, size_t most = std::string_view::npos);

/// The same in single quotes, for an option or a name in a message; at most 200 bytes of the text.
std::string quote(std::string_view text);

}  // namespace moracle
