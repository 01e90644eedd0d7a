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
  /// Enqueues a step. The first steps of a shape run directly; later ones replay a recorded graph.
  /// Devices without graphs always run directly, and so do long prompts and steps in which a
  /// sequence has no token. `most_tokens`: DispatchStep::most_tokens(); 0: no dispatch. Errors: of
  /// `enqueue`, of recording.
  template <class Enqueue>
  Status run(const Batch& batch, Device& device, Stream stream, const Enqueue& enqueue,
             int64_t most_tokens = 0) {
    const bool is_single = batch.most_tokens == 1;
    if (!on || batch.fewest_tokens < 1 || !(is_single || records_several(batch))) return enqueue();
    Shapes& shapes = is_single ? single_ : several_;
    if (shapes.size() >= kMost) shapes.clear();
    // Launches and the layout of the tables depend on these values.
    Shape& shape = shapes[{batch.num_tokens, batch.num_sequences, batch.most_tokens,
                           batch.fewest_tokens, batch.longest, most_tokens}];
    if (!shape.graph && shape.runs < (is_single ? 1 : kRunsOfSeveral)) {
      const Status done = enqueue();
      shape.runs += done ? 1 : 0;
      return done;
    }
    return replay(shape.graph, device, stream, enqueue);
  }
  /// Drops all graphs. Needed when memory that they read or write is gone.
  void forget() {
    single_.clear();
    several_.clear();
  }
  /// Number of replays so far.
  int64_t replays() const { return replays_; }

 private:
  struct Shape {
    int64_t runs = 0;  // that were direct
    std::unique_ptr<Graph> graph;
  };
  using Shapes = std::map<std::array<int64_t, 6>, Shape>;
  static constexpr size_t kMost = 64;  // limits the memory of graphs
  // Steps with drafts have many shapes, and so have short prompts: record those that come again.
  // The GPU works on more tokens for longer than the host enqueues them.
  static constexpr int64_t kRunsOfSeveral = 4, kMostOfSeveral = 32;
  bool records_several(const Batch& batch) const {
    return batch.num_tokens <= kMostOfSeveral && devices == nullptr;
  }
  Status replay(std::unique_ptr<Graph>& graph, Device& device, Stream stream,
                const std::function<Status()>& enqueue);

  // With one token of each sequence, and with several of one: the latter never evict the former.
  Shapes single_, several_;
  int64_t replays_ = 0;
};

}  // namespace moracle
