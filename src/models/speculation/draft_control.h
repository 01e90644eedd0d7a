// Decides for each step how many tokens a sequence drafts.
#pragma once

#include "models/speculation/step_costs.h"

namespace moracle {

/// What a step holds without the drafts of one sequence.
struct StepLoad {
  int64_t tokens = 1;     ///< of all sequences
  int64_t sequences = 1;  ///< that decode
  int64_t known = 1;      ///< tokens of the one sequence
  /// A rejected draft costs these tokens again, because recurrent layers keep the state of few
  /// lengths.
  bool replays = false;
};

/// Drafts as many tokens as the measured acceptance and step costs favour, and none where they
/// gain nothing. Losses are bounded: kFreeLoss tokens' time, then kLossShare of the time.
class DraftControl {
 public:
  static constexpr double kFreeLoss = 2, kLossShare = 0.01;
  /// On a busy machine measured steps may not get longer with their tokens. Without these limits
  /// such drafts seem free, and rejected ones go on: a draft costs at least this share of a token's
  /// time, and a step with drafts is charged at least this much of it.
  static constexpr double kLeastCost = 0.02, kLeastCharge = 0.1;

  /// Number of drafts for the next step, at most `most`.
  int64_t wanted(const StepCosts& costs, const StepLoad& load, int64_t most) const;
  /// A step without drafts of this sequence, or a step's drafts and how many were accepted.
  /// `extra`: the time that the sequence's drafts and replayed tokens took, in the time that a
  /// token takes without them.
  void stepped(int64_t drafted, int64_t accepted, double extra);

  /// Accepted drafts minus extra time, in tokens: what all drafts gained.
  double gained() const { return gained_; }
  double acceptance() const { return (accepted_ + 1) / (tried_ + 2); }

 private:
  double accepted_ = 0, tried_ = 0;  // recent drafts; those behind a rejected one are not tried
  double balance_ = 0;               // recent gain, in tokens
  double gained_ = 0;
  double steps_ = 0;
};

}  // namespace moracle
