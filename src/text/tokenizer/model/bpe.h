// Byte-pair encoding (BPE): merges adjacent symbols of a word, lowest merge rank first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/model/byte_fallback.h"
#include "text/tokenizer/model/vocabulary.h"

namespace moracle {

/// The "model" of a tokenizer.json. Immutable after parsing.
class Bpe {
 public:
  /// Errors: kUnsupported for a set "dropout", "continuing_subword_prefix" or "end_of_word_suffix";
  /// kBadFile, also for merges of tokens, or into tokens, that the vocabulary lacks.
  static Result<Bpe> parse(const JsonField& field);
  /// From the tokens and the "merges" of another file. Errors: as for the merges of parse().
  /// `ignore_merges`: a word that is a token stays whole.
  static Result<Bpe> make(Vocabulary vocabulary, const JsonField& merges, bool ignore_merges,
                          bool byte_fallback);

  /// Reusable scratch of one thread. Grows to the longest word.
  struct Scratch;
  struct Candidate;

  /// Appends the ids of one word. A character without a token becomes its byte tokens with
  /// "byte_fallback", else the unknown token. Without "unk_token" it is dropped, as in Hugging Face
  /// tokenizers. Takes O(n log n) time for n characters. Errors: kInvalidArgument above 2^31 - 1
  /// characters; kCancelled.
  Status encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;  ///< position in "merges": the lowest merges first
    int32_t id;     ///< id of the merged token
  };
  static uint64_t pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  Status read_merges(const JsonField& field);
  void index();
  int32_t character(uint32_t code, std::string_view text) const;
  void read_characters(std::string_view word, Scratch& scratch) const;
  void push(Scratch& scratch, int32_t at) const;
  bool is_current(const Scratch& scratch, const Candidate& candidate) const;
  Status merge_all(EncodeProgress& progress, Scratch& scratch) const;

  static constexpr uint32_t kFastCodes = 0x180;  ///< above the byte-level alphabet
  Vocabulary vocabulary_;
  std::array<int32_t, kFastCodes> fast_ids_{};  ///< ids of single characters; -1 for none
  std::unordered_map<uint64_t, Merge> merges_;
  bool ignore_merges_ = false;  ///< emit a word that is a token without merging
  ByteTokens bytes_;
  bool byte_fallback_ = false;
  int32_t unknown_ = -1;       ///< "unk_token"; -1: drop unknown characters
  bool fuse_unknown_ = false;  ///< merge adjacent unknown characters into one token
};

/// A pair that could merge when it was pushed. Stale if its position no longer holds a pair that
/// merges into the same token.
struct Bpe::Candidate {
  uint32_t rank;
  int32_t at;
  int32_t left;
  int32_t right;
  int32_t merged;
};

struct Bpe::Scratch {
  /// One symbol of the word, in a linked list by index; -1 ends the list. A symbol merged into its
  /// left neighbour has id -1.
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  std::vector<int32_t> characters;  ///< ids before the first merge
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace moracle
