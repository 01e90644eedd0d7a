#include "models/speculation/step_costs.h"

#include <algorithm>

namespace moracle {

// The first steps have equal weights, later ones replace the oldest: the context grows.
void StepCosts::measured(int64_t tokens, double seconds) {
  constexpr int64_t kRemembered = 16;
  if (tokens < 1 || tokens > kMostTokens || !(seconds > 0)) return;
  Mean& mean = means_[static_cast<size_t>(tokens)];
  // One slow step, such as the first of its size, must not decide: it counts as twice the mean, and
  // a step in less than half of the mean time replaces it.
  if (mean.count > 0) seconds = std::min(seconds, 2 * mean.seconds);
  if (seconds < mean.seconds / 2) mean.count = 0;
  mean.count = std::min(mean.count + 1, kRemembered);
  mean.seconds += (seconds - mean.seconds) / static_cast<double>(mean.count);
  most_ = std::max(most_, tokens);
}

double StepCosts::seconds(int64_t tokens) const {
  // Without a measurement one more token costs this share of the nearest step: little enough to
  // try, as a GPU reads the same weights for it.
  constexpr double kPerToken = 0.1;
  if (most_ == 0) return 0;
  const int64_t wanted = std::clamp<int64_t>(tokens, 1, kMostTokens);
  const auto mean = [&](int64_t at) -> const Mean& { return means_[static_cast<size_t>(at)]; };
  int64_t below = wanted, above = wanted;
  while (below > 0 && mean(below).count == 0) --below;
  while (above <= most_ && mean(above).count == 0) ++above;
  if (below == 0) return mean(above).seconds;
  const double at_below = mean(below).seconds;
  const auto further = static_cast<double>(wanted - below);
  if (above > most_) return at_below * (1 + kPerToken * further / static_cast<double>(below));
  if (above == below) return at_below;
  return at_below + (mean(above).seconds - at_below) * further / static_cast<double>(above - below);
}

}  // namespace moracle
