#include "models/speculation/draft_control.h"

#include <algorithm>

namespace moracle {

int64_t DraftControl::wanted(const StepCosts& costs, const StepLoad& load, int64_t most) const {
  const double plain = costs.seconds(load.tokens);
  // The first step measures.
  if (most < 1 || plain <= 0 || balance_ <= -(kFreeLoss + kLossShare * steps_)) return 0;
  const double acceptance = this->acceptance();
  const auto sequences = static_cast<double>(load.sequences);
  const double per_token = (costs.seconds(load.tokens + most) - plain) / static_cast<double>(most);
  int64_t best = 0;
  double best_rate = sequences / plain;
  double reached = 1;  // probability that all drafts so far are accepted
  double tokens = sequences;
  double replayed = 0;  // expected, in the step after a rejection
  for (int64_t drafts = 1; drafts <= most; ++drafts) {
    replayed += reached * (1 - acceptance) * static_cast<double>(load.known + drafts - 1);
    reached *= acceptance;
    tokens += reached;
    const double least = plain * (1 + kLeastCost * static_cast<double>(drafts) / sequences);
    const double seconds = std::max(costs.seconds(load.tokens + drafts), least) +
                           (load.replays ? replayed * std::max(per_token, 0.0) : 0);
    if (tokens / seconds <= best_rate) continue;
    best = drafts;
    best_rate = tokens / seconds;
  }
  // A single draft probes whether the text has changed. Its cost counts as a loss.
  return std::max<int64_t>(best, 1);
}

void DraftControl::stepped(int64_t drafted, int64_t accepted, double extra) {
  constexpr double kRemembered = 0.9, kMostBalance = 4;
  ++steps_;
  if (drafted > 0) extra = std::max(extra, kLeastCharge);
  gained_ += static_cast<double>(accepted) - extra;
  balance_ = std::min(balance_ + static_cast<double>(accepted) - extra, kMostBalance);
  if (drafted == 0) return;
  accepted_ = kRemembered * accepted_ + static_cast<double>(accepted);
  tried_ = kRemembered * tried_ + static_cast<double>(std::min(accepted + 1, drafted));
}

}  // namespace moracle
