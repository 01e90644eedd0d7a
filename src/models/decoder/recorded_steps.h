// Steps of decoding as graphs: a step of the same shape as one before is enqueued as a whole.
#pragma once

#include <map>

#include "kernels/batch.h"

namespace moracle {

class RecordedSteps {
 public:
  bool on = true;
  /// Enqueues the step: as it is the first time that its shape is seen and on devices without
  /// graphs, from then on by replaying what was recorded. Steps with more than one token of a
  /// sequence, or with none, are as they are. Errors: of `enqueue`, of recording.
  template <class Enqueue>
  Status run(const Batch& batch, Device& device, Stream stream, const Enqueue& enqueue) {
    // One token of each: then there are as many sequences as tokens, and their tables lie alike.
    if (!on || batch.most_tokens != 1 || batch.fewest_tokens != 1) return enqueue();
    if (graphs_.size() >= kMost) forget();
    // What launches depend on.
    const auto [at, is_new] = graphs_.try_emplace({batch.num_tokens, batch.longest});
    if (is_new) {
      const Status done = enqueue();
      if (!done) graphs_.erase(at);
      return done;
    }
    return replay(at->second, device, stream, enqueue);
  }
  /// What was recorded would read or write what is no longer there.
  void forget() { graphs_.clear(); }
  /// Replays so far.
  int64_t replays() const { return replays_; }

 private:
  static constexpr size_t kMost = 64;  // graphs take memory, too
  Status replay(std::unique_ptr<Graph>& graph, Device& device, Stream stream,
                const std::function<Status()>& enqueue);

  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Graph>> graphs_;  // nothing: seen once
  int64_t replays_ = 0;
};

}  // namespace moracle
