// Paths of other servers that clients try here.
#pragma once

#include <string_view>

namespace moracle::serve {

/// Why this server has no such path, in one sentence. Null: an unknown path.
const char* why_unsupported(std::string_view path);

}  // namespace moracle::serve
