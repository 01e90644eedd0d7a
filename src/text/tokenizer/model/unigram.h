// SentencePiece's Unigram model: the segmentation with the largest sum of token scores.
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
  /// Errors: kBadFile for a "vocab" that is not a list of [token, score], or an "unk_id" outside of
  /// it. The last of equal tokens wins.
  static Result<Unigram> parse(const JsonField& field);

  /// Reusable scratch of one thread. Grows to the longest word.
  struct Scratch {
    /// Best segmentation that ends at this byte.
    struct Ending {
      double score = 0;
      size_t begin = 0;  ///< of the last of them
      int32_t id = -1;   ///< of the last of them
      bool known = false;
    };
    std::vector<Ending> endings;
    std::vector<TokenTrie::Match> matches;
    std::vector<TextRange> ranges;
  };

  /// Encodes one word. Adjacent characters without a token form one unknown run: it becomes its
  /// byte tokens, or the unknown token. Errors: kBadFile for such a run without "unk_id";
  /// kCancelled.
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
