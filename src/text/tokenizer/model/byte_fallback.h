// Byte fallback: SentencePiece encodes characters outside the vocabulary as byte tokens such as
// <0x0A>.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// Parses a byte token: <0x..> with two hexadecimal digits.
std::optional<uint8_t> byte_of_token(std::string_view token);

/// Ids of the byte tokens.
class ByteTokens {
 public:
  ByteTokens() { ids_.fill(-1); }
  explicit ByteTokens(const Vocabulary& vocabulary);
  /// Appends the byte tokens of `text`. Returns false, and appends nothing, if a byte has no token.
  bool append(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  std::array<int32_t, 256> ids_;  ///< -1: none
};

}  // namespace moracle
