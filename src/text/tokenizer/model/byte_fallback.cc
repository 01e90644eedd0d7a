#include "text/tokenizer/model/byte_fallback.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace moracle {

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto [read, error] = std::from_chars(token.data() + 3, end, byte, 16);
  if (error != std::errc() || read != end) return std::nullopt;
  return byte;
}

ByteTokens::ByteTokens(const Vocabulary& vocabulary) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (size_t byte = 0; byte < ids_.size(); ++byte) {
    const std::string token = {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
    ids_[byte] = vocabulary.id(token).value_or(-1);
  }
}

bool ByteTokens::append(std::string_view text, std::vector<int32_t>& ids) const {
  const auto id = [&](char byte) { return ids_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(text.begin(), text.end(), [&](char byte) { return id(byte) < 0; })) return false;
  for (const char byte : text) ids.push_back(id(byte));
  return true;
}

}  // namespace moracle
