#include "models/host_experts/decode_estimate.h"

#include <algorithm>

#include "base/text.h"
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

constexpr int64_t kSteps = 512, kLayers = 2;

double us(double bytes, double rate) {
  return 1e6 * bytes / rate;
}

// What all splits of a model have in common.
struct Split {
  const RoutingTrace& trace;
  int64_t layers = 0;
  double expert_bytes = 0;
  double read_us = 0;  // of a choice that the host computes, from files

  double tokens_per_second(const Simulated& run) const {
    const double layer_us = run.us / static_cast<double>(run.steps * kLayers) +
                            read_us * static_cast<double>(trace.top_k) * (1 - run.hit_rate());
    return of_layer(layer_us);
  }
  double of_layer(double layer_us) const { return 1e6 / (layer_us * static_cast<double>(layers)); }
};

void add(DecodeEstimate& to, std::string split, double tokens_per_second, std::string reason) {
  if (tokens_per_second > to.tokens_per_second) reason.clear();
  to.others.push_back({std::move(split), std::move(reason), tokens_per_second});
}

// The most used experts of the first half of the trace in slots, for the second half.
Simulated with_static_list(const RoutingTrace& trace, SimulationOptions simulation) {
  const int64_t half = trace.num_steps() / 2;
  RoutingTrace later = trace;
  later.ids.erase(later.ids.begin(), later.ids.begin() + half * trace.num_layers * trace.top_k);
  for (std::vector<int64_t>& uses : simulation.start) std::fill(uses.begin(), uses.end(), 0);
  for (int64_t step = 0; step < half; ++step)
    for (int64_t layer = 0; layer < trace.num_layers; ++layer)
      for (const int32_t expert : trace.chosen(step, layer)) ++simulation.start[layer][expert];
  simulation.bytes_in_flight = 0;
  return simulate(later, simulation);
}

// Where the bus brings an expert faster than the host computes it, slots get what they lack first:
// CallWay::kFetched. `placed` becomes that if it is faster.
void fetch(DecodeEstimate& placed, const Split& split, const SimulationOptions& simulation,
           int64_t activations, double bus) {
  const RoutingTrace& trace = split.trace;
  if (simulation.num_slots < trace.top_k) return;
  const double hit_rate = lru_hit_rate(trace, simulation.num_slots, kSteps / 2);
  const auto top_k = static_cast<double>(trace.top_k);
  const double missed_bytes = (1 - hit_rate) * top_k * split.expert_bytes;
  const double rate = split.of_layer(simulation.machine.layer_us + us(missed_bytes, bus) +
                                     top_k * simulation.machine.costs.slot_us);
  if (rate <= placed.tokens_per_second) return;
  placed.tokens_per_second = rate;
  placed.hit_rate = hit_rate;
  placed.crossing_bytes = split.layers * (activations + static_cast<int64_t>(missed_bytes));
}

// `rest`: bytes of the model outside the experts.
std::vector<SplitEstimate> other_splits(const Split& split, const SimulationOptions& simulation,
                                        const DecodeEstimate& placed, double rest,
                                        const MemoryRates& rates) {
  const SimulatedMachine& machine = simulation.machine;
  const ExpertCosts& costs = machine.costs;
  const auto top_k = static_cast<double>(split.trace.top_k);
  const auto layers = static_cast<double>(split.layers);
  const double host_us = top_k * (costs.host_us + split.read_us);
  DecodeEstimate to = placed;
  add(to, "no experts on the device", placed.without_slots,
      "host memory gives the bytes of all chosen experts");
  add(to, "all on the CPU", split.of_layer(us(rest, rates.host) / layers + host_us),
      "host memory gives the bytes of all weights that a token needs");
  const int64_t in_slots = simulation.num_slots * split.layers;
  const int64_t whole = in_slots / split.trace.num_experts;
  const double share = static_cast<double>(whole) / layers;
  add(to, str("the experts of ", whole, " of ", split.layers, " layers on the device"),
      split.of_layer(machine.layer_us + share * top_k * costs.slot_us +
                     (1 - share) * (machine.crossing_us + host_us)),
      "the devices take turns, and a layer's experts are used evenly");
  const Simulated list = with_static_list(split.trace, simulation);
  add(to, "the most used experts in slots, without moves", split.tokens_per_second(list),
      str("which experts a text uses changes: ", static_cast<int64_t>(100 * list.hit_rate() + 0.5),
          " % of the choices in slots"));
  add(to, "each chosen expert crosses the bus",
      split.of_layer(machine.layer_us +
                     top_k * (us(split.expert_bytes, rates.bus) + costs.slot_us + split.read_us)),
      "the bus gives the bytes of all chosen experts");
  return to.others;
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
  const RoutingTrace trace = generate_trace({.num_steps = kSteps,
                                             .num_layers = kLayers,
                                             .num_experts = layer.num_experts,
                                             .top_k = layer.top_k});
  const int64_t on_host = std::max<int64_t>(layers.on_host->experts.num_local(), 1);
  Split split{.trace = trace, .layers = layers.count};
  split.expert_bytes = static_cast<double>(layers.on_host->weight_bytes / on_host);
  DecodeEstimate estimate;
  if (reads) {
    estimate.read_rate = 1 - lru_hit_rate(trace, plan.num_on_host, kSteps / 2);
    split.read_us = estimate.read_rate * us(split.expert_bytes, rates.files);
  }
  SimulationOptions simulation;
  ExpertCosts& costs = simulation.machine.costs;
  costs.bytes = static_cast<int64_t>(split.expert_bytes);
  costs.host_us = us(split.expert_bytes, rates.host);
  // Devices with slots compute at once, and their work is divided evenly.
  int64_t with_slots = 1;
  simulation.num_slots = plan.num_slots;
  for (const SlotDevicePlan& other : plan.slot_devices) {
    with_slots += other.num_slots > 0 ? 1 : 0;
    simulation.num_slots += other.num_slots;
  }
  costs.slot_us = us(split.expert_bytes, rates.device) / static_cast<double>(with_slots);
  costs.move_us = costs.host_us;
  simulation.machine.bus_bytes_per_us = rates.bus / 1e6;
  const int64_t rest = plan.weight_bytes - layers.slots_bytes;
  simulation.machine.layer_us =
      us(static_cast<double>(rest), rates.device) / static_cast<double>(layers.count);
  const int64_t activations =
      layer.hidden_size * bits(layers.slots->activation_dtype) / 8 * 2 + layer.top_k * 8;
  simulation.machine.crossing_us = us(static_cast<double>(activations), rates.bus);
  simulation.bytes_in_flight = options.deterministic ? 0 : kBytesInFlight;
  simulation.most_moves = kMostMoves;
  simulation.start.assign(kLayers, std::vector<int64_t>(layer.num_experts, 1));

  const Simulated run = simulate(trace, simulation);
  estimate.hit_rate = run.hit_rate();
  estimate.read_rate *= 1 - run.hit_rate();
  estimate.tokens_per_second = split.tokens_per_second(run);
  estimate.crossing_bytes = layers.count * (activations + run.bytes_moved / (kSteps * kLayers));
  if (with_slots == 1 && !reads && !options.deterministic)
    fetch(estimate, split, simulation, activations, rates.bus);
  SimulationOptions none = simulation;
  none.num_slots = 0;
  estimate.without_slots = split.tokens_per_second(simulate(trace, none));
  estimate.others = other_splits(split, simulation, estimate, static_cast<double>(rest), rates);
  if (with_slots > 1) {
    SimulationOptions one = simulation;
    one.num_slots = plan.num_slots;
    one.machine.costs.slot_us = us(split.expert_bytes, rates.device);
    add(estimate, "slots on the first device alone", split.tokens_per_second(simulate(trace, one)),
        "fewer choices find their expert in a slot");
  }
  return estimate;
}

}  // namespace moracle
