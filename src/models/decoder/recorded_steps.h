// Decode steps as graphs: a step of a known shape is enqueued as a whole.
#pragma once

#include <array>
#include <map>

#include "kernels/batch.h"
#include "moracle/placement.h"

namespace moracle {

class RecordedSteps {
 public:
  bool on = true;
  /// Of placed experts, whose host parts follow each replay; null: all experts lie on the device.
  std::shared_ptr<DevicePair> devices;
  /// Enqueues a step. The first step of a shape runs directly; later steps replay a recorded graph.
  /// Devices without graphs always run directly, and so do steps with more than one token of a
  /// sequence, or with none. `most_tokens`: DispatchStep::most_tokens(); 0: no dispatch. Errors: of
  /// `enqueue`, of recording.
  template <class Enqueue>
  Status run(const Batch& batch, Device& device, Stream stream, const Enqueue& enqueue,
             int64_t most_tokens = 0) {
    // With one token per sequence, there are as many sequences as tokens, and their tables have the
    // same layout.
    if (!on || batch.most_tokens != 1 || batch.fewest_tokens != 1) return enqueue();
    if (graphs_.size() >= kMost) forget();
    // Launches depend on these values.
    const auto [at, is_new] = graphs_.try_emplace({batch.num_tokens, batch.longest, most_tokens});
    if (is_new) {
      const Status done = enqueue();
      if (!done) graphs_.erase(at);
      return done;
    }
    return replay(at->second, device, stream, enqueue);
  }
  /// Drops all graphs. Needed when memory that they read or write is gone.
  void forget() { graphs_.clear(); }
  /// Number of replays so far.
  int64_t replays() const { return replays_; }

 private:
  static constexpr size_t kMost = 64;  // limits the memory of graphs
  Status replay(std::unique_ptr<Graph>& graph, Device& device, Stream stream,
                const std::function<Status()>& enqueue);

  std::map<std::array<int64_t, 3>, std::unique_ptr<Graph>> graphs_;  // null: shape seen once
  int64_t replays_ = 0;
};

}  // namespace moracle
