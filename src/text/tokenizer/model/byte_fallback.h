// Tokens for single bytes, such as <0x0A>, with which SentencePiece writes characters that are not
// in its vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// Returns the byte that `token` stands for, if it is <0x..> with two hexadecimal digits.
std::optional<uint8_t> byte_of_token(std::string_view token);

/// The ids of the tokens for bytes.
class ByteTokens {
 public:
  ByteTokens() { ids_.fill(-1); }
  explicit ByteTokens(const Vocabulary& vocabulary);
  /// Appends the tokens of all bytes of `text`. Returns false, and appends nothing, if one of them
  /// has no token.
  bool append(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  std::array<int32_t, 256> ids_;  ///< -1: none
};

}  // namespace moracle
