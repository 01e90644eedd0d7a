// Maps token ids back to bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_field.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/vocabulary.h"

namespace moracle {

class TokenBytes {
 public:
  struct Entry {
    std::string bytes;  ///< bytes of the token; for an added token, its content
    bool special = false;
  };

  /// Errors: kBadFile, placed at `field`, for an added token with the id of another token.
  static Result<TokenBytes> make(const Vocabulary& vocabulary, const AddedTokens& added,
                                 const JsonField& field);

  /// Returns null for an id without a token.
  const Entry* find(int32_t id) const;
  /// The largest id plus one.
  int64_t end_of_ids() const { return static_cast<int64_t>(indexes_.size()); }

 private:
  Entry& entry(int32_t id);
  std::vector<Entry> entries_;
  std::vector<uint32_t> indexes_;  ///< by id: index in entries_ plus one; 0 for none
};

}  // namespace moracle
