// Progress reports and cancellation for one encode call, shared by all tokenizer steps.
#pragma once

#include "moracle/base.h"

namespace moracle {

class EncodeProgress {
 public:
  /// `progress` must outlive this object; it may be empty. `bytes`: size of the text.
  EncodeProgress(const Progress& progress, size_t bytes)
      : progress_(progress), total_(static_cast<int64_t>(bytes)) {}

  /// Call after each word, merge or match. False: the user cancelled; return stopped().
  [[nodiscard]] bool step() { return ++steps_ % kStepsPerCall != 0 || call(); }
  /// Calls the user's progress function.
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
