#pragma once

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "serve/engine/job.h"

namespace moracle::serve {

/// Applies LogitEdits to the logits of one sequence.
class LogitEditor {
 public:
  LogitEditor(LogitEdits edits, std::span<const int32_t> prompt);
  bool changes_nothing() const { return edits_.changes_nothing(); }
  /// Counts a generated token.
  void add(int32_t id) { ++counts_[id]; }
  /// Changes logits [vocab_size] in place.
  void apply(std::span<float> logits) const;

 private:
  const LogitEdits edits_;
  std::unordered_set<int32_t> in_prompt_;
  std::unordered_map<int32_t, int64_t> counts_;  // generated
};

}  // namespace moracle::serve
