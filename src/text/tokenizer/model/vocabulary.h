// Vocabulary: token texts and ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json/json_field.h"

namespace moracle {

/// Largest token id accepted from a file. Published vocabularies stay below 300,000. The bound
/// keeps tables indexed by id below 64 MiB.
inline constexpr int64_t kLargestTokenId = (int64_t{1} << 24) - 1;
/// Errors: not a token id from 0 to kLargestTokenId.
Result<int32_t> token_id(const JsonField& field);

class Vocabulary {
 public:
  /// Adds a token. For equal texts, encoding uses the later id, and decoding accepts both.
  void add(const std::string& token, int32_t id);
  /// Parses the "vocab" of a BPE model. Errors (kBadFile): not an object of ids, two tokens with
  /// one id.
  static Result<Vocabulary> parse(const JsonField& field);

  std::optional<int32_t> id(std::string_view token) const;
  /// Number of tokens. It is smaller than the largest id plus one if ids are unused.
  size_t size() const { return ids_.size() + shadowed_.size(); }
  /// Number of duplicate texts. Encoding uses the later id.
  const std::vector<std::pair<std::string, int32_t>>& shadowed() const { return shadowed_; }
  auto begin() const { return ids_.begin(); }
  auto end() const { return ids_.end(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::pair<std::string, int32_t>> shadowed_;
};

}  // namespace moracle
