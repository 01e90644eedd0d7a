// Token budget per step, from measured step times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace moracle::serve {

/// Chunked prefill: limits steps with prompts to a target time, so that decoding sequences get
/// their next token in time.
class StepBudget {
 public:
  /// `most`: maximum tokens per step. `target`: seconds per step.
  StepBudget(int64_t most, double target) : most_(most), target_(target), tokens_(most) {}

  int64_t tokens() const { return tokens_; }
  /// Records a step of `tokens` tokens. Ignores small steps: their time is that of reading the
  /// weights, independent of the token count.
  void measured(int64_t tokens, double seconds) {
    if (tokens < kTokenStep || !(seconds > 0)) return;
    const double per_token = seconds / static_cast<double>(tokens);
    average_ = average_ > 0 ? 0.75 * average_ + 0.25 * per_token : per_token;
    const double fits = std::min(target_ / average_, static_cast<double>(most_));
    tokens_ = std::clamp(static_cast<int64_t>(fits) / kTokenStep * kTokenStep,
                         std::min(kTokenStep, most_), most_);
  }

 private:
  static constexpr int64_t kTokenStep = 32;
  const int64_t most_;
  const double target_;
  double average_ = 0;  // seconds per token
  int64_t tokens_;
};

}  // namespace moracle::serve
