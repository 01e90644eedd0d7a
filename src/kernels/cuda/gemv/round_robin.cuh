// Assigns the pipeline stages of a CTA's units to its warps round-robin, unit after unit. The
// numbers of stages differ by at most one.
#pragma once

namespace moracle::cuda {

/// A stage of a unit of the block.
struct UnitStage {
  int unit, step;
};

template <int kWarps>
class RoundRobin {
 public:
  /// `steps`: stages of a unit.
  __device__ explicit RoundRobin(int steps)
      : steps_(steps), units_(kWarps / steps), over_(kWarps % steps) {}

  /// A warp's first stage.
  __device__ UnitStage first(int warp) const { return {warp / steps_, warp % steps_}; }
  /// The stage after another one of the same warp.
  __device__ UnitStage after(const UnitStage& at) const {
    const int step = at.step + over_;
    const bool next = step >= steps_;
    return {at.unit + units_ + (next ? 1 : 0), next ? step - steps_ : step};
  }
  /// Stages of a warp.
  __device__ int count(int warp, int units) const {
    return max(units * steps_ - warp + kWarps - 1, 0) / kWarps;
  }
  /// Warps that have a stage of a unit.
  __device__ int sharers() const { return min(steps_, kWarps); }
  /// The warp with stage `step` of a unit. Sums of a unit are added from step 0 on, so that their
  /// order is that of the columns in each unit.
  __device__ int warp_of(int unit, int step) const { return (unit * steps_ + step) % kWarps; }

 private:
  int steps_, units_, over_;
};

}  // namespace moracle::cuda
