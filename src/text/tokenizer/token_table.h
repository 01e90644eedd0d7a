// All tokens by id, added tokens included.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// One token's text, as in the file.
struct TokenText {
  std::string text;
  bool special = false;
};

/// The tokens of a file, by id.
class TokenTable {
 public:
  /// Errors: kBadFile, at `field`, for an added token whose id is taken.
  static Result<TokenTable> make(const Vocabulary& vocabulary, const AddedTokens& added,
                                 const JsonField& field);
  /// Returns null for an id without a token.
  const TokenText* find(int32_t id) const;
  /// Replaces the text that decoding starts from. `id` has a token.
  void set_text(int32_t id, std::string text) { entry(id).text = std::move(text); }
  /// The largest id plus one.
  int64_t end_of_ids() const { return static_cast<int64_t>(indexes_.size()); }

 private:
  TokenText& entry(int32_t id);
  std::vector<TokenText> tokens_;
  std::vector<uint32_t> indexes_;  ///< by id: index in tokens_ plus one; 0 for none
};

}  // namespace moracle
