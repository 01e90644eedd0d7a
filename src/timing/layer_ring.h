// Layers that take turns while they are timed.
#pragma once

#include <memory>
#include <vector>

#include "moracle/moe.h"
#include "timing/random_routing.h"

namespace moracle::timing {

/// Equal layers with weights of their own that take turns, so that none finds its weights in a
/// cache.
class LayerRing {
 public:
  /// Layers of the selection's plan until they hold `enough_bytes` together, at most 16, and in
  /// memory no more than `most_bytes`. Errors: the selection chose nothing; one layer needs more
  /// than `most_bytes`; memory; kCancelled.
  static Result<LayerRing> make(const Selection& selection, const std::shared_ptr<Device>& device,
                                int64_t enough_bytes, int64_t most_bytes,
                                const Progress& progress = {});

  const Plan& plan() const { return layers_.front().plan(); }
  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

  /// Seconds of each run, for about `seconds`; at least three unless one alone takes longer. Where
  /// the device can record work, runs are those of graphs. Errors: more
  /// tokens than planned; output that is not finite; kCancelled.
  Result<std::vector<double>> time(int64_t num_tokens, double seconds,
                                   const Progress& progress = {});
  /// The routings that it takes in turn for so many tokens.
  std::vector<Routed> routings(int64_t num_tokens) const {
    return random_routings(plan().layer, num_tokens, static_cast<uint64_t>(num_tokens));
  }
  struct Times {
    std::vector<double> seconds;
    int64_t calls = 0;  ///< that took turns: the first so many routings, again and again
    /// Of calls from the host, where `seconds` are those of graphs: from the first of several calls
    /// until the last is done, and for the host to enqueue one. 0: `seconds` are of such calls.
    double us_eager = 0, us_host = 0;
  };
  /// The same with these routings, and more about it.
  Result<Times> time(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                     const Progress& progress);

 private:
  LayerRing(std::shared_ptr<Device> device, std::vector<FusedMoe> layers)
      : device_(std::move(device)), layers_(std::move(layers)) {}
  Result<Times> time_calls(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                           const Progress& progress);
  Result<Times> time_replays(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                             const Progress& progress);

  std::shared_ptr<Device> device_;
  std::vector<FusedMoe> layers_;
};

}  // namespace moracle::timing
