// tiktoken's BPE: adjacent symbols merge if their bytes form a token, lowest token id first. It
// needs no merge list.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// Immutable. The vocabulary holds bytes, not characters.
class TiktokenBpe {
 public:
  /// Token ids serve as merge ranks. Errors (kBadFile, without file): a byte without a token.
  static Result<TiktokenBpe> make(Vocabulary vocabulary);

  struct Candidate;
  struct Scratch;

  /// Encodes one word in O(n log n) time for n bytes. Errors: kInvalidArgument above 2^31 - 1
  /// bytes; kCancelled.
  Status encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  bool push(std::string_view word, Scratch& scratch, int32_t at) const;

  Vocabulary vocabulary_;
  size_t longest_ = 0;  ///< bytes of the longest token
};

/// A pair that could merge when it was pushed. Stale if its position holds other bytes now.
struct TiktokenBpe::Candidate {
  int32_t merged;  ///< id
  int32_t at;
  int32_t end;  ///< end of the right symbol
};

struct TiktokenBpe::Scratch {
  /// One symbol of the word, indexed by its first byte. A symbol merged into its left neighbour has
  /// id -1.
  struct Symbol {
    int32_t id;
    int32_t end;       ///< also the next symbol's index
    int32_t previous;  ///< index; -1 for none
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace moracle
