// Copies text across a C interface into the caller's buffer, cut to its size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace moracle::peers {

inline constexpr int64_t kTextBytes = 4096;  ///< size of every buffer that a caller passes

inline void give_text(std::string_view text, char* to) {
  const size_t bytes = std::min<size_t>(text.size(), kTextBytes - 1);
  std::memcpy(to, text.data(), bytes);
  to[bytes] = 0;
}

}  // namespace moracle::peers
