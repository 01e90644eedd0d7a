// BPE without a merge list: adjacent symbols merge if their joined text is a token, lowest rank
// first; among equal ranks, the leftmost.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/model/byte_fallback.h"
#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// Immutable.
class RankedBpe {
 public:
  /// tiktoken's BPE: the vocabulary holds bytes, token ids serve as ranks, and a word that is a
  /// token stays whole. Errors (kBadFile, without file): a byte without a token.
  static Result<RankedBpe> of_bytes(Vocabulary vocabulary);
  /// SentencePiece's BPE: symbols are characters, and `ranks` holds the rank of each id. A
  /// character without a token becomes its byte tokens, else `unknown`.
  static RankedBpe of_characters(Vocabulary vocabulary, std::vector<int32_t> ranks,
                                 int32_t unknown);

  struct Candidate;
  struct Scratch;

  /// Encodes one word in O(n log n) time for n bytes. Errors: kInvalidArgument above 2^31 - 1
  /// bytes; kCancelled.
  Status encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  explicit RankedBpe(Vocabulary vocabulary);
  void read_symbols(std::string_view word, Scratch& scratch) const;
  bool push(std::string_view word, Scratch& scratch, int32_t at) const;
  Status merge_all(std::string_view word, EncodeProgress& progress, Scratch& scratch) const;

  Vocabulary vocabulary_;
  size_t longest_ = 0;          ///< bytes of the longest token
  std::vector<int32_t> ranks_;  ///< by id; empty: the id
  bool by_character_ = false;
  ByteTokens bytes_;
  int32_t unknown_ = -1;
};

/// A pair that could merge when it was pushed. Stale if its position holds other bytes now.
struct RankedBpe::Candidate {
  int32_t rank;
  int32_t merged;  ///< id
  int32_t at;
  int32_t end;  ///< end of the right symbol
};

struct RankedBpe::Scratch {
  /// One symbol of the word, indexed by its first byte. A symbol merged into its left neighbour has
  /// the end 0.
  struct Symbol {
    int32_t id;        ///< -1: no token
    int32_t end;       ///< also the next symbol's index
    int32_t previous;  ///< index; -1 for none
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace moracle
