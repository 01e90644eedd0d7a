// The tokens that a grammar allows next, as a bitset.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moracle::serve {

/// One bit per token of the vocabulary, set if the token is allowed.
class TokenMask {
 public:
  TokenMask() = default;
  explicit TokenMask(int64_t vocab_size)
      : vocab_size_(vocab_size), words_(static_cast<size_t>((vocab_size + 31) / 32)) {}

  /// Bit id % 32 of word id / 32 is the token id. Call settle() after changes.
  std::span<uint32_t> words() { return words_; }
  std::span<const uint32_t> words() const { return words_; }
  void allow_all();
  void forbid(int32_t id);
  /// Drops bits above the vocabulary, and counts the others.
  void settle();

  int64_t num_allowed() const { return num_allowed_; }
  bool allows_all() const { return num_allowed_ == vocab_size_; }
  /// False for ids outside the vocabulary.
  bool allows(int32_t id) const {
    return id >= 0 && id < vocab_size_ &&
           (words_[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
  }
  /// The allowed ids, ascending.
  void list(std::vector<int32_t>& ids) const;
  /// Copies logits [vocab_size]; forbidden tokens become negative infinity. `to` may be `from`.
  void copy(std::span<const float> from, std::span<float> to) const;

 private:
  int64_t vocab_size_ = 0, num_allowed_ = 0;
  std::vector<uint32_t> words_;
};

}  // namespace moracle::serve
