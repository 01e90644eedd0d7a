// Tiny models whose experts lie in host memory and in slots. The device and the host are two CPU
// devices.
#pragma once

#include <algorithm>
#include <cmath>

#include "golden_model.h"
#include "models/decoder/model_state.h"
#include "support/must.h"

namespace moracle::testing::placed {

inline int64_t expert_bytes(const ModelPlan& planned) {
  int64_t bytes = 0;
  for (const Choice& choice : planned.choices) {
    if (choice.part == "experts")
      bytes += choice.selection.plan->weight_bytes * static_cast<int64_t>(choice.layers.size());
  }
  return bytes;
}

/// Options with the memory for about this share of the experts, but never for the whole model.
inline ModelOptions options_for(const Checkpoint& checkpoint, double share,
                                bool deterministic = false) {
  ModelOptions options;
  options.threads = 2;
  options.max_num_tokens = 4;
  options.deterministic = true;  // no memory for long steps
  options.cache_bytes = 1 << 20;
  const ModelPlan whole = must(plan(checkpoint, options));
  const int64_t most = whole.total_bytes() + options.cache_bytes - 1;
  options.device_memory = most;
  const ModelPlan some = must(plan(checkpoint, options));
  const int64_t least = some.total_bytes() - expert_bytes(some) + options.cache_bytes + 64;
  options.device_memory = std::min(
      most, least + static_cast<int64_t>(static_cast<double>(expert_bytes(whole)) * share));
  options.deterministic = deterministic;
  return options;
}

/// Runs the tokens one by one, so that experts move between them.
inline std::vector<float> logits_of_steps(Model& model, const std::vector<int32_t>& ids) {
  KvCache cache = must(model.make_cache(static_cast<int64_t>(ids.size())));
  std::vector<float> all;
  for (const int32_t& id : ids) {
    const Model::Step step{{&id, 1}, &cache};
    must(model.forward({&step, 1}));
    const std::span<const float> logits = must(model.logits(0, 1));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

inline double share_of_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return got.size() == want.size() ? std::sqrt(difference / norm) : INFINITY;
}

/// Lets every move pay and the host compute what slots lack, whatever was measured.
inline void set_eager_policy(Model& model) {
  Model::State& state = ModelAccess::state(model);
  state.call_ways = {CallWay::kDivided};
  for (Layer& layer : state.layers) {
    PlacedMoe* const placed = layer.feed_forward.routed.placed();
    if (placed == nullptr) continue;
    placed->set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}});
    placed->set_ways(state.call_ways);
  }
}

/// The same with host memory for about this share of the experts.
inline ModelOptions with_files(const Checkpoint& checkpoint, ModelOptions options, double share) {
  const auto bytes = static_cast<double>(must(plan(checkpoint, options)).host_bytes);
  options.host_memory = static_cast<int64_t>(bytes * share);
  return options;
}

}  // namespace moracle::testing::placed
