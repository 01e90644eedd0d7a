// Base 64, as in RFC 4648.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moracle {

/// Decodes padded base 64; nullopt if the text is not base 64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace moracle
