// Byte-pair encoding: splits words into token ids by merging neighbours, the earliest learned pair
// first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json_field.h"
#include "text/tokenizer/vocabulary.h"

namespace moracle {

/// The "model" of a tokenizer.json. Immutable after parsing.
class Bpe {
 public:
  /// Errors: kUnsupported for other models, a set "unk_token", "dropout", "byte_fallback",
  /// "continuing_subword_prefix" or "end_of_word_suffix"; kBadFile, also for merges whose parts or
  /// results are not in the vocabulary. "fuse_unk" has no effect without an "unk_token".
  static Result<Bpe> parse(const JsonField& field);

  /// Memory of one thread for encoding; it grows to the longest word.
  struct Scratch;

  /// Appends the ids of one word. Omits characters without a token, as the library that writes
  /// these files does without an "unk_token"; a byte-level vocabulary has all 256. Takes O(n log n)
  /// for n characters. Errors: kInvalidArgument above 2^31 - 1 characters.
  Status encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;  ///< place in the file's list: the lowest is merged first
    int32_t id;     ///< id of the merged token
  };
  static uint64_t pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  Status read_merges(const JsonField& field);
  int32_t character(uint32_t code, std::string_view text) const;
  void push(Scratch& scratch, int32_t at) const;
  void merge_all(Scratch& scratch) const;

  static constexpr uint32_t kFastCodes = 0x180;  ///< the byte-level alphabet lies below
  Vocabulary vocabulary_;
  std::array<int32_t, kFastCodes> fast_ids_{};  ///< ids of single characters; -1 for none
  std::unordered_map<uint64_t, Merge> merges_;
  bool ignore_merges_ = false;  ///< a word that is a token itself skips merging
};

struct Bpe::Scratch {
  /// A token of the word so far, linked to its neighbours by index; -1 for none. A token merged
  /// into its left neighbour has id -1.
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  /// A pair that was mergeable when it was pushed. It is void if one side has changed since.
  struct Candidate {
    uint32_t rank;
    int32_t at;
    int32_t left;
    int32_t right;
    int32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace moracle
