// Added tokens: matched in the text before pre-tokenization.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json/json_field.h"
#include "base/regex/regex.h"
#include "text/tokenizer/model/vocabulary.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/token_trie.h"

namespace moracle {

/// An entry of a file's "added_tokens".
struct AddedToken {
  std::string content;
  std::string text;  ///< the text to match: the content, normalized if `normalized`
  int32_t id = 0;
  bool single_word = false;  ///< matches only where no word character is adjacent
  bool lstrip = false;       ///< consumes white space before the token
  bool rstrip = false;       ///< consumes white space after the token
  bool normalized = false;   ///< matched after normalization
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

/// A token of a tokenizer_config.json.
struct ConfigToken {
  enum Kind {
    kListed,  ///< in "added_tokens_decoder": replaces the flags of the same token
    kNamed,   ///< such as "eos_token": marks an existing token as special, keeps its other flags
    kMore,    ///< in "extra_special_tokens": an existing token keeps its flags
  };
  AddedToken token;  ///< without an id
  Kind kind = kListed;
};

class AddedTokens {
 public:
  /// Parses "added_tokens", then adds the tokens of `config`. Each id must equal the vocabulary's
  /// id for this content, or else the next free id: Hugging Face tokenizers assigns ids this way
  /// and ignores the ids in the file, so a mismatch leaves the training ids unknown. Errors
  /// (kBadFile): missing or wrong members, a duplicate content, a wrong id.
  static Result<AddedTokens> parse(const JsonField& field, const Vocabulary& vocabulary,
                                   const Normalizer& normalizer,
                                   std::span<const ConfigToken> config = {});

  /// One segment of a text: an added token, or the text between two (`id` is empty).
  struct Segment {
    TextRange range;
    std::optional<int32_t> id;
  };
  /// Splits `text` at the tokens that match before normalization. No segment is empty.
  std::vector<Segment> cut_raw(std::string_view text) const { return cut(raw_, text); }
  /// Splits normalized text at the tokens that match after normalization.
  std::vector<Segment> cut_normalized(std::string_view text) const {
    return cut(normalized_, text);
  }

  const std::vector<AddedToken>& all() const { return tokens_; }
  std::optional<int32_t> id(std::string_view content) const;

  /// Rejects longer contents: bounds the search time per byte of text.
  static constexpr size_t kLongestContent = 4096;

 private:
  explicit AddedTokens(Regex word) : word_(std::move(word)) {}
  Status add(const JsonField& field, const Vocabulary& vocabulary);
  void add(const ConfigToken& more, const Vocabulary& vocabulary);
  int32_t next_id(const std::string& content, const Vocabulary& vocabulary) const;
  Status index(const Normalizer& normalizer);
  std::vector<Segment> cut(const TokenTrie& trie, std::string_view text) const;
  bool touches_word(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  int64_t largest_id_ = -1;
  TokenTrie raw_;
  TokenTrie normalized_;
  Regex word_;  ///< matches one word character
};

}  // namespace moracle
