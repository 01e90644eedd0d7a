// What one layer's experts take, beside what the machine could do at most: shapes of published
// models, layers of random weights made in memory, the clock, and the floor below which no kernel
// can come.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/limits.h"
#include "moracle/moe.h"

namespace moracle::bench {

/// The experts of one layer of a model.
struct LayerShape {
  std::string name;  ///< "qwen3-30b-a3b", or "8x64x32x2" where no model was named
  int64_t num_experts = 0, hidden_size = 0, intermediate_size = 0, top_k = 0;
  ActivationSpec activation;
  bool bias = false;
};
std::span<const LayerShape> known_shapes();
/// A known shape's name, or experts x hidden size x intermediate size x top_k. Errors: neither,
/// naming those that are known.
Result<LayerShape> find_shape(std::string_view text);
LayerSpec layer_of(const LayerShape& shape, const Scheme& scheme);

/// One matrix per expert in the spec's scheme, made as it is read: rows drawn from a few hundred
/// random ones, so that gigabytes take no longer than their copying.
DescribedMatrix random_experts(const MatrixShape& shape, const Scheme& scheme, int64_t num_experts,
                               uint64_t seed);
DescribedWeights random_layer(const LayerSpec& spec, uint64_t seed);

/// Where the tokens of one apply go: distinct experts for each, at random.
struct Routed {
  std::vector<int32_t> ids;    ///< [num_tokens, top_k]
  std::vector<float> weights;  ///< likewise
  int64_t distinct = 0;        ///< experts that have a token
};
/// Several, to be gone through in turn. Of single tokens, as many as use every expert once before
/// any comes again.
std::vector<Routed> random_routings(const LayerSpec& spec, int64_t num_tokens, uint64_t seed);

/// Codes, scales (one byte where they are powers of two, else four), zero points and biases of one
/// expert.
int64_t expert_bytes(const LayerSpec& spec);
/// 2 · N · K for each of `rows` pairs of a token and an expert.
int64_t matrix_ops(const MatrixShape& shape, int64_t rows);

/// The peak that bounds a matrix's kernel: of the instruction that its plan names, else the best
/// for the numbers that it reads. Null: none is known.
const Peak* peak_for(const KernelPlan& kernel, int64_t num_tokens, std::span<const Peak> peaks);

/// One cell of the table: so many tokens at once, on the layers of a ring.
struct Measurement {
  int64_t num_tokens = 0;
  int64_t runs = 0;
  double us_median = 0, us_min = 0, us_p10 = 0, us_p90 = 0;
  /// Of calls from the host, on devices where the times above are of graphs: from the first of
  /// several calls in a row until the last is done, and what the host takes to enqueue one. 0: on
  /// this device both are the times above.
  double us_eager = 0, us_host = 0;
  int64_t bytes = 0;  ///< of the experts that have a token, in the mean of the routings
  int64_t ops = 0;
  double read_bytes_per_second = 0;  ///< as probed right before and after
  double us_memory = 0;              ///< bytes at that rate
  double us_compute = 0;             ///< ops at the peaks, probed likewise where they matter
  std::string peak;                  ///< whose; empty: none is known
  double us_floor() const { return us_memory > us_compute ? us_memory : us_compute; }
  double share_of_limit() const { return us_floor() / us_median; }
};

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
  /// The same, and the limits right before and after.
  Result<Measurement> measure(int64_t num_tokens, double seconds, LimitsProbe& probe,
                              std::span<const Peak> peaks, const Progress& progress = {});

 private:
  LayerRing(std::shared_ptr<Device> device, std::vector<FusedMoe> layers)
      : device_(std::move(device)), layers_(std::move(layers)) {}
  std::vector<Routed> routings(int64_t num_tokens) const {
    return random_routings(plan().layer, num_tokens, static_cast<uint64_t>(num_tokens));
  }
  struct Times {
    std::vector<double> seconds;
    int64_t calls = 0;  ///< that took turns: the first so many routings, again and again
    double us_eager = 0, us_host = 0;
  };
  Result<Times> time(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                     const Progress& progress);
  Result<Times> time_calls(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                           const Progress& progress);
  Result<Times> time_replays(int64_t num_tokens, const std::vector<Routed>& routed, double seconds,
                             const Progress& progress);

  std::shared_ptr<Device> device_;
  std::vector<FusedMoe> layers_;
};

}  // namespace moracle::bench
