#include "placement/simulator.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>

#include "placement/prefetch.h"

namespace moracle {
namespace {

struct SimulatedLayer {
  ExpertSlots slots;
  SlotPolicy policy;
  std::optional<NextLayerPolicy> from_before;  // prefetches
  double moves_us = 0;  // the host's time for moves that began after the last step
};

struct OnBus {
  int64_t layer;
  ExpertMove move;
  double arrives_us;
  bool prefetched;
};

class Simulation {
 public:
  Simulation(const RoutingTrace& trace, const SimulationOptions& options, const WatchSlots& watch)
      : trace_(trace),
        options_(options),
        costs_(options.machine.costs),
        watch_(watch),
        budget_(options.bytes_in_flight) {
    for (int64_t layer = 0; layer < trace.num_layers; ++layer) {
      layers_.push_back(
          {ExpertSlots(trace.num_experts, options.num_slots),
           SlotPolicy(trace.num_experts, options.num_slots, {costs_, options.half_life}),
           {}});
      if (options.prefetches && layer > 0)
        layers_.back().from_before.emplace(trace.num_experts, costs_);
      if (!options.start.empty()) start(layers_.back(), options.start[layer]);
    }
  }

  Simulated run() {
    for (int64_t step = 0; step < trace_.num_steps(); ++step) {
      for (int64_t layer = 0; layer < trace_.num_layers; ++layer) {
        arrive(step, true);
        at_ = {.step = step, .layer = layer};
        if (layer + 1 < trace_.num_layers && layers_[layer + 1].from_before) prefetch(step, layer);
        compute(layers_[layer], trace_.chosen(step, layer));
      }
      end_step(step);
    }
    result_.steps = trace_.num_steps();
    result_.bytes_moved = result_.moves * costs_.bytes;
    result_.us = now_us_;
    return result_;
  }

 private:
  // What models do between two steps. Moves that the bus cannot take soon are dropped.
  void end_step(int64_t step) {
    arrive(step, false);
    budget_.end_step();
    const int64_t first = step % trace_.num_layers;
    const auto turn = std::partition_point(decided_.begin(), decided_.end(),
                                           [&](const auto& one) { return one.first < first; });
    std::rotate(decided_.begin(), turn, decided_.end());
    for (const auto& [layer, move] : decided_) {
      if (budget_.moves_of(costs_.bytes) <= 0) break;
      at_ = {.step = step, .layer = layer};
      begin(layers_[layer], move, false);
      layers_[layer].moves_us += costs_.move_us;
    }
    decided_.clear();
  }

  void tell(SlotEvent::Kind kind, int32_t expert, int32_t slot, int32_t evicted = -1) {
    if (!watch_) return;
    SlotEvent event = at_;
    event.kind = kind, event.expert = expert, event.slot = slot, event.evicted = evicted;
    event.us = now_us_;
    watch_(event);
  }

  void start(SimulatedLayer& layer, const std::vector<int64_t>& uses) {
    std::vector<int32_t> order(uses.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return uses[a] > uses[b]; });
    for (int64_t slot = 0; slot < std::min(options_.num_slots, trace_.num_experts); ++slot) {
      layer.slots.begin(order[slot], slot);
      layer.slots.finish(slot);
    }
    const int64_t choices = std::accumulate(uses.begin(), uses.end(), int64_t{0});
    layer.policy.start_from(uses, choices / std::max<int64_t>(trace_.top_k, 1));
  }

  // Completes what the bus has delivered by now, in all layers. Within a step calls find prefetched
  // experts alone.
  void arrive(int64_t step, bool within) {
    for (auto next = on_bus_.begin(); next != on_bus_.end() && next->arrives_us <= now_us_;) {
      if (within && !next->prefetched) {
        ++next;
        continue;
      }
      const OnBus arrived = *next;
      next = on_bus_.erase(next);
      layers_[arrived.layer].slots.finish(arrived.move.slot);
      budget_.end(costs_.bytes);
      at_ = {.step = step, .layer = arrived.layer};
      tell(SlotEvent::kReady, arrived.move.expert, arrived.move.slot);
    }
  }

  // Begins moves for the layer after this one. The host reads these experts while it computes.
  void prefetch(int64_t step, int64_t layer) {
    SimulatedLayer& next = layers_[layer + 1];
    const auto chosen = trace_.chosen(step, layer);
    const auto moves =
        next.from_before->decide(chosen, next.slots, next.policy, budget_.moves_of(costs_.bytes));
    at_.layer = layer + 1;
    for (const ExpertMove& move : moves) begin(next, move, true);
    at_.layer = layer;
    prefetched_us_ = static_cast<double>(moves.size()) * costs_.move_us;
    result_.prefetches += static_cast<int64_t>(moves.size());
    next.from_before->observe(chosen, trace_.chosen(step, layer + 1));
  }

  // Computes a layer and decides moves, which begin after the step.
  void compute(SimulatedLayer& layer, std::span<const int32_t> chosen) {
    int64_t hits = 0;
    for (const int32_t expert : chosen) {
      const int32_t slot = layer.slots.ready_slot(expert);
      tell(slot >= 0 ? SlotEvent::kHit : SlotEvent::kMiss, expert, slot);
      hits += slot >= 0;
    }
    const auto misses = static_cast<int64_t>(chosen.size()) - hits;
    result_.hits += hits;
    result_.misses += misses;

    layer.policy.observe(chosen);
    const std::vector<ExpertMove> moves =
        layer.policy.decide(layer.slots, options_.bytes_in_flight > 0 ? options_.most_moves : 0);
    const SimulatedMachine& machine = options_.machine;
    const double host_us = static_cast<double>(misses) * costs_.host_us +
                           std::exchange(layer.moves_us, 0) + prefetched_us_;
    prefetched_us_ = 0;
    const double slots_us = static_cast<double>(hits) * costs_.slot_us;
    const double experts_us = std::max(host_us, slots_us);
    const double others_us = machine.layer_us + machine.crossing_us;
    result_.host_waits_us += others_us + experts_us - host_us;
    result_.slots_wait_us += experts_us - slots_us;
    now_us_ += others_us + experts_us;
    for (const ExpertMove& move : moves) decided_.emplace_back(at_.layer, move);
  }

  void begin(SimulatedLayer& layer, const ExpertMove& move, bool prefetched) {
    const int32_t evicted = layer.slots.expert_in(move.slot);
    layer.slots.begin(move.expert, move.slot);
    budget_.begin(costs_.bytes);
    bus_free_us_ = std::max(bus_free_us_, now_us_) +
                   static_cast<double>(costs_.bytes) / options_.machine.bus_bytes_per_us;
    on_bus_.push_back({at_.layer, move, bus_free_us_, prefetched});
    ++result_.moves;
    tell(SlotEvent::kBegin, move.expert, move.slot, evicted);
  }

  const RoutingTrace& trace_;
  const SimulationOptions& options_;
  const ExpertCosts& costs_;
  const WatchSlots& watch_;
  MoveBudget budget_;
  std::vector<SimulatedLayer> layers_;
  std::deque<OnBus> on_bus_;                             // in the order of arrival
  std::vector<std::pair<int64_t, ExpertMove>> decided_;  // in this step, with their layers
  double now_us_ = 0, bus_free_us_ = 0;
  double prefetched_us_ = 0;  // the host's time for moves to the next layer
  SlotEvent at_;
  Simulated result_;
};

}  // namespace

Simulated simulate(const RoutingTrace& trace, const SimulationOptions& options,
                   const WatchSlots& watch) {
  return Simulation(trace, options, watch).run();
}

}  // namespace moracle
