// The number of tokens per step, from the measured time of earlier steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace moracle::serve {

/// Keeps steps with prompts near a target time. Sequences that decode beside a prompt then get
/// their next token in time. Prompts are cut into chunks of this budget.
class StepBudget {
 public:
  /// At most `most` tokens per step. `target`: seconds per step.
  StepBudget(int64_t most, double target) : most_(most), target_(target), tokens_(most) {}

  int64_t tokens() const { return tokens_; }
  /// Reports a step of `tokens` that took `seconds`. Small steps are left out: their time is that
  /// of reading the weights, whatever the number of tokens.
  void measured(int64_t tokens, double seconds) {
    if (tokens < kFew || !(seconds > 0)) return;
    const double per_token = seconds / static_cast<double>(tokens);
    average_ = average_ > 0 ? 0.75 * average_ + 0.25 * per_token : per_token;
    const double fits = std::min(target_ / average_, static_cast<double>(most_));
    tokens_ = std::clamp(static_cast<int64_t>(fits) / kFew * kFew, std::min(kFew, most_), most_);
  }

 private:
  static constexpr int64_t kFew = 32;
  const int64_t most_;
  const double target_;
  double average_ = 0;  // seconds per token
  int64_t tokens_;
};

}  // namespace moracle::serve
