// SentencePiece's Unigram: the tokens of a word whose scores have the largest sum.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json/json_field.h"
#include "base/regex/regex.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/model/byte_fallback.h"
#include "text/tokenizer/model/vocabulary.h"
#include "text/tokenizer/token_trie.h"

namespace moracle {

/// The "model" of type Unigram of a tokenizer.json. Immutable after parsing.
class Unigram {
 public:
  /// Errors: kBadFile for a "vocab" that is not a list of texts and scores, or an "unk_id" outside
  /// of it. If texts are equal, the last counts.
  static Result<Unigram> parse(const JsonField& field);

  /// Memory of one thread for encoding; it grows to the longest word.
  struct Scratch {
    /// The best tokens that end at a byte.
    struct Ending {
      double score = 0;
      size_t begin = 0;  ///< of the last of them
      int32_t id = -1;   ///< of the last of them
      bool known = false;
    };
    std::vector<Ending> endings;
    std::vector<TokenTrie::Match> matches;
    std::vector<TextRange> parts;
  };

  /// Appends the ids of one word. Neighbouring characters without a token are one unknown text: it
  /// becomes the tokens of its bytes, or the unknown token. Errors: kBadFile for such a text if the
  /// file has no "unk_id"; kCancelled.
  Status encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Status find_best(std::string_view word, EncodeProgress& progress, Scratch& scratch) const;

  Vocabulary vocabulary_;
  ByteTokens bytes_;
  TokenTrie trie_;
  std::vector<double> scores_;  ///< by id
  double unknown_score_ = 0;
  std::optional<int32_t> unknown_;
  bool byte_fallback_ = false;
};

}  // namespace moracle
