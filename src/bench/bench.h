// The time of one layer's experts beside the machine's limits: shapes of published models, the
// bytes and operations of a call, and the floor that follows from them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/limits.h"
#include "moracle/moe.h"
#include "timing/layer_ring.h"
#include "timing/random_layer.h"

namespace moracle::bench {

using namespace timing;

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

/// Times the ring's layers at so many tokens, with the limits probed right before and right after.
/// Errors: those of LayerRing::time; of the probe.
Result<Measurement> measure(LayerRing& ring, int64_t num_tokens, double seconds, LimitsProbe& probe,
                            std::span<const Peak> peaks, const Progress& progress = {});

}  // namespace moracle::bench
