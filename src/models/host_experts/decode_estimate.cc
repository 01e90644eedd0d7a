#include "models/host_experts/decode_estimate.h"

#include <algorithm>

#include "placement/simulator.h"

namespace moracle {
namespace decode_estimate {
namespace {

// The layers with experts. All count as like the first.
struct PlacedLayers {
  int64_t count = 0;
  const Plan* on_host = nullptr;
  const Plan* slots = nullptr;
  int64_t slots_bytes = 0;  // of all of them
};

PlacedLayers layers_of(std::span<const ModuleChoice> modules) {
  PlacedLayers layers;
  for (const ModuleChoice& module : modules) {
    const Plan& plan = *module.selection.plan;
    if (module.part == kHostExperts && layers.on_host == nullptr) layers.on_host = &plan;
    if (module.part != "experts" || layers.on_host == nullptr) continue;
    if (layers.slots == nullptr) layers.slots = &plan;
    layers.slots_bytes += plan.weight_bytes;
    ++layers.count;
  }
  return layers;
}

}  // namespace
}  // namespace decode_estimate

std::optional<DecodeEstimate> estimate_decode(std::span<const ModuleChoice> modules,
                                              const ModelPlan& plan, const ModelOptions& options) {
  using namespace decode_estimate;
  const PlacedLayers layers = layers_of(modules);
  const MemoryRates& rates = options.rates;
  if (layers.count == 0 || rates.host <= 0 || rates.device <= 0 || rates.bus <= 0) return {};
  const LayerSpec& layer = layers.slots->layer;
  const bool reads = plan.num_on_host >= 0 && plan.num_on_host < layer.num_experts;
  if (reads && rates.files <= 0) return {};

  // Two layers are enough: those of the generator have popular experts of their own.
  constexpr int64_t kSteps = 512, kLayers = 2;
  const RoutingTrace trace = generate_trace({.num_steps = kSteps,
                                             .num_layers = kLayers,
                                             .num_experts = layer.num_experts,
                                             .top_k = layer.top_k});
  const auto us = [](double bytes, double rate) { return 1e6 * bytes / rate; };
  const int64_t on_host = std::max<int64_t>(layers.on_host->experts.num_local(), 1);
  const auto bytes = static_cast<double>(layers.on_host->weight_bytes / on_host);
  DecodeEstimate estimate;
  double read_us = 0;  // for each choice
  if (reads) {
    estimate.read_rate = 1 - lru_hit_rate(trace, plan.num_on_host, kSteps / 2);
    read_us = estimate.read_rate * us(bytes, rates.files);
  }
  SimulationOptions simulation;
  ExpertCosts& costs = simulation.machine.costs;
  costs.bytes = static_cast<int64_t>(bytes);
  costs.host_us = us(bytes, rates.host);
  costs.slot_us = us(bytes, rates.device);
  costs.move_us = costs.host_us;
  simulation.machine.bus_bytes_per_us = rates.bus / 1e6;
  const int64_t rest = plan.weight_bytes - layers.slots_bytes;
  simulation.machine.layer_us =
      us(static_cast<double>(rest), rates.device) / static_cast<double>(layers.count);
  const int64_t activations =
      layer.hidden_size * bits(layers.slots->activation_dtype) / 8 * 2 + layer.top_k * 8;
  simulation.machine.crossing_us = us(static_cast<double>(activations), rates.bus);
  simulation.num_slots = plan.num_slots;
  simulation.bytes_in_flight = options.deterministic ? 0 : kBytesInFlight;
  simulation.most_moves = 1;
  simulation.start.assign(kLayers, std::vector<int64_t>(layer.num_experts, 1));

  const auto tokens_per_second = [&](const Simulated& run) {
    const double layer_us = run.us / (kSteps * kLayers) +
                            read_us * static_cast<double>(layer.top_k) * (1 - run.hit_rate());
    return 1e6 / (layer_us * static_cast<double>(layers.count));
  };
  const Simulated run = simulate(trace, simulation);
  estimate.hit_rate = run.hit_rate();
  estimate.read_rate *= 1 - run.hit_rate();
  estimate.tokens_per_second = tokens_per_second(run);
  estimate.crossing_bytes = layers.count * (activations + run.bytes_moved / (kSteps * kLayers));
  simulation.num_slots = 0;
  estimate.without_slots = tokens_per_second(simulate(trace, simulation));
  return estimate;
}

}  // namespace moracle
