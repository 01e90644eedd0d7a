// Text from users and files, made safe for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moracle {

/// `text` on one line: line breaks, control characters, marks that reorder text and bytes that are
/// not UTF-8 are written as \n, \x1b and so on. Text beyond `most` bytes is cut, and its length
/// follows.
std::string printable(std::string_view text, size_t most = std::string_view::npos);

/// The same in single quotes, as messages repeat an option or a name: at most 200 bytes of it.
std::string quote(std::string_view text);

}  // namespace moracle
