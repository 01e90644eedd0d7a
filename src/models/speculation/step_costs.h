// Measured times of decode steps.
#pragma once

#include <array>
#include <cstdint>

namespace moracle {

/// The time of a step by its number of tokens, from steps of the same model. Times between two
/// measured sizes are interpolated.
class StepCosts {
 public:
  /// Steps of more tokens do not count.
  static constexpr int64_t kMostTokens = 256;

  void measured(int64_t tokens, double seconds);
  /// 0: nothing is measured yet.
  double seconds(int64_t tokens) const;

 private:
  struct Mean {
    double seconds = 0;
    int64_t count = 0;
  };
  std::array<Mean, kMostTokens + 1> means_{};
  int64_t most_ = 0;  // the largest measured size
};

}  // namespace moracle
