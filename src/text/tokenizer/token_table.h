// The tokens of a tokenizer.json by id, with those that were added to the vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// The text of one token, as the file writes it.
struct TokenText {
  std::string text;
  bool special = false;
};

/// The tokens of a file, by id.
class TokenTable {
 public:
  /// Errors: kBadFile, placed at `field`, for an added token with the id of another token.
  static Result<TokenTable> make(const Vocabulary& vocabulary, const AddedTokens& added,
                                 const JsonField& field);
  /// Returns null for an id without a token.
  const TokenText* find(int32_t id) const;
  /// The largest id plus one.
  int64_t end_of_ids() const { return static_cast<int64_t>(indexes_.size()); }

 private:
  TokenText& entry(int32_t id);
  std::vector<TokenText> tokens_;
  std::vector<uint32_t> indexes_;  ///< by id: index in tokens_ plus one; 0 for none
};

}  // namespace moracle
