// Times one layer's experts beside the machine's limits: shapes of published models, the bytes and
// operations of a call, and the resulting floor.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/limits.h"
#include "moracle/moe.h"
#include "timing/layer_ring.h"
#include "timing/random_layer.h"

namespace moracle::bench {

using timing::LayerRing;
using timing::random_experts;
using timing::random_layer;
using timing::random_routings;
using timing::Routed;

/// The experts of one layer of a model.
struct LayerShape {
  std::string name;  ///< "qwen3-30b-a3b", or "8x64x32x2" if no model was named
  int64_t num_experts = 0, hidden_size = 0, intermediate_size = 0, top_k = 0;
  ActivationSpec activation;
  bool bias = false;
};
std::span<const LayerShape> known_shapes();
/// Parses the name of a known shape, or experts x hidden size x intermediate size x top_k. Errors:
/// neither of these, listing the known names.
Result<LayerShape> find_shape(std::string_view text);
LayerSpec layer_of(const LayerShape& shape, const Scheme& scheme);

/// Bytes of one expert: codes, scales (one byte if they are powers of two, else four), zero points
/// and biases.
int64_t expert_bytes(const LayerSpec& spec);
/// Operations: 2 · N · K for each of `rows` pairs of a token and an expert.
int64_t matrix_ops(const MatrixShape& shape, int64_t rows);

/// Returns the peak that bounds a matrix's kernel. This is the peak of the instruction that the
/// plan names, else the best peak for the numbers that the kernel reads. Null: no peak is known.
const Peak* peak_for(const MatrixPlan& matrix, int64_t num_tokens, std::span<const Peak> peaks);

/// One cell of the table: `num_tokens` tokens at once, on the layers of a ring.
struct Measurement {
  int64_t num_tokens = 0;
  int64_t runs = 0;
  double us_median = 0, us_min = 0, us_p10 = 0, us_p90 = 0;
  /// Times of host-enqueued calls, on devices where the times above are of graphs. us_eager: from
  /// the first of several calls in a row until the last is done. us_host: for the host to enqueue
  /// one call. 0: on this device both are the times above.
  double us_eager = 0, us_host = 0;
  int64_t bytes = 0;  ///< of the experts with a token, mean over the routings
  int64_t ops = 0;
  double read_bytes_per_second = 0;  ///< probed right before and after
  double us_memory = 0;              ///< time of `bytes` at that rate
  double us_compute = 0;             ///< time of `ops` at the peaks, probed before and after, too
  std::string peak;                  ///< name of the peak; empty: none is known
  double us_floor() const { return us_memory > us_compute ? us_memory : us_compute; }
  double share_of_limit() const { return us_floor() / us_median; }
};

struct MeasureOptions {
  double seconds = 1;  ///< to spend
  double zipf = 0;     ///< skew of the routings: exponent of their Zipf law, 0 for uniform
};
/// Times the ring's layers at `num_tokens` tokens, with the limits probed right before and right
/// after. Errors: those of LayerRing::time; of the probe.
Result<Measurement> measure(LayerRing& ring, int64_t num_tokens, const MeasureOptions& options,
                            LimitsProbe& probe, std::span<const Peak> peaks,
                            const Progress& progress = {});

}  // namespace moracle::bench
