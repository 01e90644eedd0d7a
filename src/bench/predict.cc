#include "bench/predict.h"

#include <algorithm>

#include "placement/simulator.h"

namespace moracle::bench {

std::optional<PredictedSlots> predict(const Model::State& model, const RoutingTrace& trace,
                                      const Decode& decode) {
  int64_t routed = 0;
  for (const Layer& layer : model.layers)
    routed += layer.feed_forward.routed.placed() != nullptr ? 1 : 0;
  if (routed == 0 || trace.num_steps() < 2 || decode.batch != 1) return {};
  // As force_experts takes the layers of the trace; a part of the steps is enough.
  constexpr int64_t kMostSteps = 1024;
  RoutingTrace steps{routed, trace.num_experts, trace.top_k, {}};
  const int64_t count = std::min(trace.num_steps(), kMostSteps);
  for (int64_t step = 0; step < count; ++step) {
    for (int64_t layer = 0; layer < routed; ++layer) {
      const auto chosen = trace.chosen(step, layer % trace.num_layers);
      steps.ids.insert(steps.ids.end(), chosen.begin(), chosen.end());
    }
  }
  double others_us = 0;
  for (const DecodePart& part : decode.parts)
    if (part.name != "experts") others_us += part.us;
  const PlacedTimes& times = model.placed_times;
  SimulationOptions options;
  options.machine.costs = times.costs;
  options.machine.layer_us = others_us / static_cast<double>(routed);
  options.machine.bus_bytes_per_us =
      times.transfer_us > 0 ? static_cast<double>(times.costs.bytes) / times.transfer_us
                            : options.machine.bus_bytes_per_us;
  options.num_slots = decode.num_slots;
  options.bytes_in_flight = model.batch_invariant ? 0 : kBytesInFlight;
  options.most_moves = kMostMoves;
  options.start.assign(static_cast<size_t>(routed), std::vector<int64_t>(trace.num_experts, 1));
  // The first half fills the slots, as the steps before the timed ones do.
  const int64_t from = count / 2;
  int64_t hits = 0, choices = 0;
  double began_us = -1;
  const Simulated run = simulate(steps, options, [&](const SlotEvent& event) {
    if (event.step < from || event.kind > SlotEvent::kMiss) return;
    if (began_us < 0) began_us = event.us;
    hits += event.kind == SlotEvent::kHit ? 1 : 0;
    ++choices;
  });
  return PredictedSlots{
      static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(choices, 1)),
      (run.us - began_us) / static_cast<double>(count - from)};
}

}  // namespace moracle::bench
