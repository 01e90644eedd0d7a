// Tokens that are cut out of a text before any other step.
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
  std::string text;  ///< the content, normalized if the token is searched in normalized text
  int32_t id = 0;
  bool single_word = false;  ///< not beside a letter, a digit or another word character
  bool lstrip = false;       ///< also takes the white space before it
  bool rstrip = false;       ///< also takes the white space behind it
  bool normalized = false;   ///< searched in the normalized text, as its normalized content
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

/// A token of a tokenizer_config.json.
struct ConfigToken {
  enum Kind {
    kListed,  ///< in "added_tokens_decoder": its flags replace those of the same added token
    kNamed,   ///< such as "eos_token": a known one becomes special and keeps its other flags
    kMore,    ///< in "extra_special_tokens": a known one keeps its flags
  };
  AddedToken token;  ///< without an id
  Kind kind = kListed;
};

class AddedTokens {
 public:
  /// Parses "added_tokens". Errors (kBadFile): missing or wrong members, one content twice, or a
  /// wrong id. An id must be that of the vocabulary for this content, or else the next free one.
  /// The library that writes these files numbers the tokens itself and ignores the ids in the file.
  /// If the two disagree, the numbering of the model's training is unknown.
  /// Then adds the tokens of `config`, which get ids in the same way.
  static Result<AddedTokens> parse(const JsonField& field, const Vocabulary& vocabulary,
                                   const Normalizer& normalizer,
                                   std::span<const ConfigToken> config = {});

  /// A part of a text: an added token, or text between tokens if `id` is empty.
  struct Segment {
    TextRange range;
    std::optional<int32_t> id;
  };
  /// Cuts `text` at the tokens that are searched before normalization. No part of text is empty.
  std::vector<Segment> cut_raw(std::string_view text) const { return cut(raw_, text); }
  /// Cuts normalized text at the other tokens.
  std::vector<Segment> cut_normalized(std::string_view text) const {
    return cut(normalized_, text);
  }

  const std::vector<AddedToken>& all() const { return tokens_; }
  std::optional<int32_t> id(std::string_view content) const;

  /// Longer contents are refused, so that a search takes bounded time per byte of text.
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
  Regex word_;  ///< one word character
};

}  // namespace moracle
