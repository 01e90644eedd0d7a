// Reports the progress of encoding one text, from all parts of the tokenizer.
#pragma once

#include "moracle/base.h"

namespace moracle {

class EncodeProgress {
 public:
  /// `progress` must outlive it; it may be empty. `bytes`: of the text.
  EncodeProgress(const Progress& progress, size_t bytes)
      : progress_(progress), total_(static_cast<int64_t>(bytes)) {}

  /// Call after each small step: a word, a merge, a match. False: the caller of the tokenizer stops
  /// the work; return stopped().
  [[nodiscard]] bool step() { return ++steps_ % kStepsPerCall != 0 || call(); }
  /// Calls the caller of the tokenizer.
  [[nodiscard]] bool call() { return !progress_ || progress_(done_, total_); }
  /// The first `bytes` of the text are encoded.
  void reach(size_t bytes) { done_ = static_cast<int64_t>(bytes); }

  static Error stopped() {
    return {ErrorKind::kCancelled, "", "text", "", "encoding was stopped on request"};
  }

 private:
  static constexpr int64_t kStepsPerCall = 1 << 14;  // about 1 ms
  const Progress& progress_;
  const int64_t total_;
  int64_t done_ = 0, steps_ = 0;
};

}  // namespace moracle
