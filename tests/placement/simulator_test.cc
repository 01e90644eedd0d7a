#include "placement/simulator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace moracle::simulator_test {
namespace {

#ifdef MORACLE_SANITIZED
constexpr int kTrials = 10'000;
#else
constexpr int kTrials = 100'000;
#endif

/// Follows the events of a run with books of its own, and reports what must not happen.
class Auditor {
 public:
  Auditor(const RoutingTrace& trace, const SimulationOptions& options)
      : options_(options), layers_(trace.num_layers) {
    for (int64_t layer = 0; layer < trace.num_layers && !options.start.empty(); ++layer) {
      std::vector<std::pair<int64_t, int32_t>> order;
      for (int32_t e = 0; e < trace.num_experts; ++e)
        order.emplace_back(-options.start[layer][e], e);
      std::sort(order.begin(), order.end());
      for (int32_t s = 0; s < std::min(options.num_slots, trace.num_experts); ++s)
        layers_[layer].ready[s] = order[s].second;
    }
  }

  void see(const SlotEvent& event) {
    Layer& layer = layers_[event.layer];
    if (event.us < us_) fail("time runs backwards");
    us_ = event.us;
    if (step_ != event.step) step_ = event.step, arrived_ = 0;
    switch (event.kind) {
      case SlotEvent::kHit:
        ++hits;
        if (!layer.ready.contains(event.slot) || layer.ready[event.slot] != event.expert)
          fail("a call reads a slot without its expert");
        break;
      case SlotEvent::kMiss:
        ++misses;
        for (const auto& [slot, expert] : layer.ready)
          if (expert == event.expert) fail("the host computes an expert that is in a slot");
        break;
      case SlotEvent::kBegin:
        begin(layer, event);
        break;
      case SlotEvent::kReady:
        if (!layer.arriving.contains(event.slot) || layer.arriving[event.slot] != event.expert)
          fail("an expert is ready that was not on its way");
        layer.arriving.erase(event.slot);
        layer.ready[event.slot] = event.expert;
        in_flight_ -= options_.machine.costs.bytes;
        arrived_ += options_.machine.costs.bytes;
        most_arrived_ = std::max(most_arrived_, arrived_);
        break;
    }
  }

  int64_t hits = 0, misses = 0, moves = 0;
  std::string failure;

 private:
  struct Layer {
    std::map<int32_t, int32_t> ready, arriving;  // expert by slot
  };

  void begin(Layer& layer, const SlotEvent& event) {
    ++moves;
    if (event.slot < 0 || event.slot >= options_.num_slots) fail("a slot that does not exist");
    if (layer.arriving.contains(event.slot)) fail("a slot is evicted while its expert arrives");
    for (const auto* slots : {&layer.ready, &layer.arriving})
      for (const auto& [slot, expert] : *slots)
        if (expert == event.expert) fail("an expert gets a second slot");
    const auto old = layer.ready.find(event.slot);
    if ((old == layer.ready.end() ? -1 : old->second) != event.evicted) fail("wrong victim");
    layer.ready.erase(event.slot);
    layer.arriving[event.slot] = event.expert;
    in_flight_ += options_.machine.costs.bytes;
    if (in_flight_ > std::max(options_.bytes_in_flight, 2 * most_arrived_))
      fail("more bytes are on the bus than allowed");
  }
  void fail(const char* what) {
    if (failure.empty()) failure = what;
  }

  const SimulationOptions& options_;
  std::vector<Layer> layers_;
  double us_ = 0;
  int64_t step_ = 0;
  int64_t in_flight_ = 0, arrived_ = 0, most_arrived_ = 0;  // the last two in a step
};

struct Trial {
  RoutingTrace trace;
  SimulationOptions options;
};

Trial random_trial(uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto pick = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(engine);
  };
  const auto real = [&](double to) {
    return std::uniform_real_distribution<double>(0, to)(engine);
  };
  TraceOptions of_trace{
      .num_steps = pick(0, 12), .num_layers = pick(1, 3), .num_experts = pick(1, 9)};
  of_trace.top_k = pick(1, std::min<int64_t>(of_trace.num_experts, 3));
  of_trace.zipf = real(2), of_trace.persistence = real(1), of_trace.recency = real(1);
  of_trace.coupling = pick(0, 1) == 0 ? 0 : real(1);
  of_trace.seed = seed;
  Trial trial{generate_trace(of_trace), {}};
  SimulationOptions& options = trial.options;
  SimulatedMachine& machine = options.machine;
  machine.costs = {real(100), real(100), real(pick(0, 1) == 0 ? 1 : 200), pick(1, 1000)};
  machine.layer_us = real(50), machine.crossing_us = real(10);
  machine.bus_bytes_per_us = 0.1 + real(100);
  options.num_slots = pick(0, of_trace.num_experts);
  options.half_life = 0.1 + real(20);
  options.bytes_in_flight = pick(0, 4) * pick(0, 1000);
  options.prefetches = pick(0, 1) == 0;
  if (pick(0, 2) == 0) options.most_moves = pick(0, 2);
  if (pick(0, 1) == 0) {
    options.start.resize(of_trace.num_layers);
    for (std::vector<int64_t>& uses : options.start)
      for (int64_t e = 0; e < of_trace.num_experts; ++e) uses.push_back(pick(0, 5));
  }
  return trial;
}

TEST(Simulator, KeepsInvariantsForRandomPoliciesAndTraces) {
  int64_t hits = 0, moves = 0;
  for (int seed = 0; seed < kTrials; ++seed) {
    const Trial trial = random_trial(seed);
    Auditor auditor(trial.trace, trial.options);
    const Simulated run =
        simulate(trial.trace, trial.options, [&](const SlotEvent& event) { auditor.see(event); });
    ASSERT_EQ(auditor.failure, "") << "seed " << seed;
    ASSERT_EQ(run.hits, auditor.hits) << "seed " << seed;
    ASSERT_EQ(run.misses, auditor.misses) << "seed " << seed;
    ASSERT_EQ(run.moves, auditor.moves) << "seed " << seed;
    ASSERT_EQ(run.hits + run.misses, static_cast<int64_t>(trial.trace.ids.size()));
    ASSERT_EQ(run.bytes_moved, run.moves * trial.options.machine.costs.bytes);
    ASSERT_EQ(simulate(trial.trace, trial.options), run) << "seed " << seed;
    hits += run.hits, moves += run.moves;
  }
  EXPECT_GT(hits, kTrials);
  EXPECT_GT(moves, kTrials / 4);
}

/// Experts of 8 MB on a machine whose slots are ten times faster than its host.
SimulationOptions fast_slots(int64_t num_slots) {
  SimulationOptions options;
  options.machine = {.costs = {.host_us = 100, .slot_us = 10, .move_us = 20, .bytes = 8'000'000},
                     .layer_us = 40,
                     .crossing_us = 10,
                     .bus_bytes_per_us = 50'000};
  options.num_slots = num_slots;
  options.bytes_in_flight = 16 * 8'000'000;
  return options;
}

TEST(Simulator, TimeOfLayerIsThatOfSlowerDevice) {
  const RoutingTrace trace{1, 4, 2, {0, 1}};
  SimulationOptions options = fast_slots(1);
  options.start = {{1, 0, 0, 0}};
  options.bytes_in_flight = 0;
  const Simulated run = simulate(trace, options);
  EXPECT_EQ(run.hits, 1);
  EXPECT_EQ(run.moves, 0);
  EXPECT_DOUBLE_EQ(run.us, 40 + 10 + 100);
  EXPECT_DOUBLE_EQ(run.slots_wait_us, 90);
  EXPECT_DOUBLE_EQ(run.host_waits_us, 50);
}

TEST(Simulator, ExpertServesAfterBusDeliversIt) {
  // A step takes 50 us, and 70 us more where the host computes expert 0; the bus takes 160 us.
  RoutingTrace trace{1, 2, 1, std::vector<int32_t>(4, 0)};
  SimulationOptions options = fast_slots(1);
  options.machine.costs.host_us = 70, options.machine.costs.move_us = 0;
  const Simulated run = simulate(trace, options);
  EXPECT_EQ(run.moves, 1);
  EXPECT_EQ(run.misses, 3) << "ends of steps: 120, 240, 360; the expert arrives at 280";
  EXPECT_EQ(run.hits, 1);
  EXPECT_DOUBLE_EQ(run.us, 3 * 120 + 60);
}

// Layers that determine one another, experts that cross faster than the host computes them.
TEST(Simulator, PrefetchPaysWhereLayersAreCoupledAndMovesAreCheap) {
  const auto run = [](double coupling, double move_us, bool prefetches) {
    const RoutingTrace trace = generate_trace({.num_steps = 800,
                                               .num_layers = 4,
                                               .num_experts = 128,
                                               .top_k = 8,
                                               .coupling = coupling,
                                               .seed = 3});
    SimulationOptions options = fast_slots(32);
    options.machine.costs.move_us = move_us;
    options.machine.bus_bytes_per_us = 400'000;
    options.prefetches = prefetches;
    return simulate(trace, options);
  };
  const Simulated coupled = run(0.9, 20, true), waits = run(0.9, 20, false);
  EXPECT_GT(coupled.prefetches, 1000);
  EXPECT_GT(coupled.hit_rate(), waits.hit_rate() + 0.03);
  EXPECT_LT(coupled.us, 0.95 * waits.us);
  // Reading an expert for the bus takes the host's memory as long as computing it there.
  EXPECT_EQ(run(0.9, 100, true).prefetches, 0);
  EXPECT_EQ(run(0.9, 100, true), run(0.9, 100, false));
  // Layers that say nothing about one another.
  EXPECT_LE(run(0, 20, true).us, 1.02 * run(0, 20, false).us);
}

// A quarter of the experts in slots: a cache gains what a list cannot.
TEST(Simulator, CacheBeatsListOnTraceWithLocality) {
  const RoutingTrace trace = generate_trace(
      {.num_steps = 2000, .num_layers = 4, .num_experts = 512, .top_k = 10, .seed = 3});
  SimulationOptions cache = fast_slots(128), list = cache, none = fast_slots(0);
  list.bytes_in_flight = 0;
  list.start.assign(4, std::vector<int64_t>(512));
  for (int64_t step = 0; step < 1000; ++step)
    for (int64_t layer = 0; layer < 4; ++layer)
      for (const int32_t id : trace.chosen(step, layer)) ++list.start[layer][id];
  const Simulated of_cache = simulate(trace, cache), of_list = simulate(trace, list),
                  of_none = simulate(trace, none);
  EXPECT_EQ(of_none.hits, 0);
  EXPECT_LT(of_list.us, of_none.us);
  EXPECT_GT(of_cache.hit_rate(), of_list.hit_rate() + 0.25);
  EXPECT_GT(of_cache.hit_rate(), lru_hit_rate(trace, 128, 200) - 0.05) << "moves take time";
  EXPECT_LT(of_cache.us, 0.7 * of_list.us);
}

}  // namespace
}  // namespace moracle::simulator_test
