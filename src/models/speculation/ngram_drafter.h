// Prompt lookup: drafts without a model.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace moracle {

/// Drafts the tokens that followed the latest earlier occurrence of the text's last tokens. The
/// longest run that occurred decides: kLongest tokens, then fewer, at least kShortest.
class NgramDrafter {
 public:
  static constexpr size_t kShortest = 2, kLongest = 4;

  /// Continues the text, of which `tokens` is all. Its beginning must not have changed.
  void follow(std::span<const int32_t> tokens);
  /// Appends at most `most` drafts. Where they reach the text's end they go on with themselves, as
  /// a text does that repeats itself.
  void draft(int64_t most, std::vector<int32_t>& to) const;

 private:
  // Runs by hash. Two runs with one hash only cost a wrong draft.
  using Ends = std::unordered_map<uint64_t, size_t>;

  std::vector<int32_t> tokens_;
  std::array<Ends, kLongest - kShortest + 1> next_;  // where the latest run's next token is
};

}  // namespace moracle
