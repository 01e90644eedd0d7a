// Routing traces: the experts that tokens chose in each layer, recorded or generated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// The choices of one sequence's decode steps, one token each.
struct RoutingTrace {
  int64_t num_layers = 0;  ///< with experts
  int64_t num_experts = 0;
  int64_t top_k = 0;
  std::vector<int32_t> ids;  ///< [steps, num_layers, top_k]

  int64_t num_steps() const {
    const int64_t step = num_layers * top_k;
    return step == 0 ? 0 : static_cast<int64_t>(ids.size()) / step;
  }
  std::span<const int32_t> chosen(int64_t step, int64_t layer) const {
    return std::span(ids).subspan((step * num_layers + layer) * top_k, top_k);
  }

  /// Errors: kIo; kBadFile for other content, with the place.
  static Result<RoutingTrace> open(const std::string& path);
  std::string json() const;
  bool operator==(const RoutingTrace&) const = default;
};

/// How a generated trace chooses experts. The defaults give what llama.cpp #27861 publishes for
/// 512 experts, top-10: a list of the 32 experts that half of the tokens choose most covers about
/// 10 % of the other half; an LRU cache of 64 experts a layer hits 67 %, of 128 experts 81 %.
struct TraceOptions {
  int64_t num_steps = 0, num_layers = 0, num_experts = 0, top_k = 0;
  /// The r-th most popular expert (from 1) is drawn with weight r^-zipf. Layers have their own.
  double zipf = 0.32;
  /// The share of choices that take an expert that was chosen lately, not one by popularity.
  double persistence = 0.785;
  /// Such a choice takes the d-th last chosen expert with probability ~ exp(-d / recency), where
  /// recency is this share of the experts.
  double recency = 0.072;
  /// The share of choices that the choice of the layer before determines. Not calibrated: 0.
  double coupling = 0;
  uint64_t seed = 0;
};
/// Requires top_k <= num_experts.
RoutingTrace generate_trace(const TraceOptions& options);

/// The share of choices that an LRU cache of `capacity` experts a layer holds already, if an expert
/// arrives at once. Steps before `from` fill the cache and do not count.
double lru_hit_rate(const RoutingTrace& trace, int64_t capacity, int64_t from = 0);
/// The share of choices in the second half of the steps among the `capacity` experts a layer that
/// the first half chooses most.
double static_hit_rate(const RoutingTrace& trace, int64_t capacity);

}  // namespace moracle
