// A ring of layers that are timed round-robin.
#pragma once

#include <memory>
#include <vector>

#include "moracle/moe.h"
#include "timing/random_routing.h"

namespace moracle::timing {

/// Equal layers with their own weights, timed round-robin so that no layer finds its weights in a
/// cache.
class LayerRing {
 public:
  /// Makes layers of the selection's plan until they hold `enough_bytes` together: at most 16, and
  /// at most `most_bytes` in memory. Errors: the selection chose nothing; one layer needs more than
  /// `most_bytes`; memory; kCancelled.
  static Result<LayerRing> make(const Selection& selection, const std::shared_ptr<Device>& device,
                                int64_t enough_bytes, int64_t most_bytes,
                                const Progress& progress = {});

  const Plan& plan() const { return layers_.front().plan(); }
  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

  /// Returns the seconds of each run, measured for about `seconds`: at least three runs unless one
  /// alone takes longer. A GPU gets several calls at once, whose mean counts as one run: replays of
  /// a graph if the device can record work. Errors: more tokens than planned; output that is not
  /// finite; kCancelled.
  Result<std::vector<double>> time(int64_t num_tokens, double seconds,
                                   const Progress& progress = {});
  /// The routings that time() uses round-robin for `num_tokens` tokens. `zipf`: as random_routings.
  std::vector<Routed> routings(int64_t num_tokens, double zipf = 0) const {
    return random_routings(plan().layer, num_tokens, static_cast<uint64_t>(num_tokens), zipf);
  }
  struct Times {
    std::vector<double> seconds;
    int64_t calls = 0;  ///< number of calls in turn: the first so many routings, repeated
    /// Microseconds per host-enqueued call, if `seconds` are of graphs. us_eager: from the first of
    /// several calls until the last is done. us_host: for the host to enqueue one call. 0:
    /// `seconds` are of host-enqueued calls.
    double us_eager = 0, us_host = 0;
  };
  /// Same with the given routings; returns more detail.
  Result<Times> time(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                     const Progress& progress);

 private:
  LayerRing(std::shared_ptr<Device> device, std::vector<FusedMoe> layers)
      : device_(std::move(device)), layers_(std::move(layers)) {}
  Result<Times> time_calls(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                           const Progress& progress);
  Result<Times> time_enqueued(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                              const Progress& progress);

  std::shared_ptr<Device> device_;
  std::vector<FusedMoe> layers_;
};

}  // namespace moracle::timing
