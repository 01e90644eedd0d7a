// Byte-pair encoding by rank, as tiktoken has it: two neighbours merge if their bytes are a token,
// the token with the lowest id first. No list of merges is needed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// Immutable. The texts of its vocabulary are bytes, not characters.
class TiktokenBpe {
 public:
  /// The ids of the vocabulary are the ranks. Errors (kBadFile, without file): a byte without a
  /// token.
  static Result<TiktokenBpe> make(Vocabulary vocabulary);

  struct Candidate;
  struct Scratch;

  /// Appends the ids of one word. Takes O(n log n) for n bytes. Errors: kInvalidArgument above 2^31
  /// - 1 bytes; kCancelled.
  Status encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  bool push(std::string_view word, Scratch& scratch, int32_t at) const;

  Vocabulary vocabulary_;
  size_t longest_ = 0;  ///< bytes of the longest token
};

/// A pair that was mergeable when it was pushed; void if its place holds other bytes now.
struct TiktokenBpe::Candidate {
  int32_t merged;  ///< id
  int32_t at;
  int32_t end;  ///< of the right part
};

struct TiktokenBpe::Scratch {
  /// A token of the word so far, by the byte at which it begins. One that was merged into its left
  /// neighbour has id -1.
  struct Symbol {
    int32_t id;
    int32_t end;       ///< also the next symbol's index
    int32_t previous;  ///< index; -1 for none
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace moracle
