// Runs a routing trace through slots and policies on a fake clock: hit rate, bytes, time.
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "placement/policy.h"
#include "placement/trace.h"

namespace moracle {

/// The times of one machine and one model, in microseconds.
struct SimulatedMachine {
  ExpertCosts costs;
  double layer_us = 0;     ///< of a layer without its experts
  double crossing_us = 0;  ///< of ids and activations between the devices, once a layer
  double bus_bytes_per_us = 1;
};

struct SimulationOptions {
  SimulatedMachine machine;
  int64_t num_slots = 0;  ///< of each layer
  double half_life = 4;   ///< see PolicyOptions
  /// Bytes that may be on the bus at a time. 0: experts do not move.
  int64_t bytes_in_flight = 0;
  /// Begin moves for the next layer when a layer's experts are known, where they pay
  /// (NextLayerPolicy).
  bool prefetches = false;
  /// Moves that a layer begins after a step at most.
  int64_t most_moves = std::numeric_limits<int64_t>::max();
  /// [num_layers][num_experts]: the most used experts lie in slots at the start. Empty: slots are
  /// empty.
  std::vector<std::vector<int64_t>> start;
};

/// One thing that happens in a layer, for tests and pictures.
struct SlotEvent {
  enum Kind : uint8_t {
    kHit,    ///< a call reads the expert in its slot
    kMiss,   ///< a call computes the expert on the host
    kBegin,  ///< the expert begins to arrive in the slot and evicts `evicted`
    kReady,  ///< its bytes are complete
  };
  Kind kind = kHit;
  int64_t step = 0, layer = 0;
  int32_t expert = -1, slot = -1, evicted = -1;
  double us = 0;  ///< on the fake clock
  bool operator==(const SlotEvent&) const = default;
};
using WatchSlots = std::function<void(const SlotEvent&)>;

struct Simulated {
  int64_t steps = 0;
  int64_t hits = 0, misses = 0;
  int64_t moves = 0, bytes_moved = 0;
  int64_t prefetches = 0;  ///< of the moves
  double us = 0;
  double host_waits_us = 0;  ///< the host had no work, while slots or the rest of a layer ran
  double slots_wait_us = 0;  ///< the device with the slots waited for the host's part of a sum

  double hit_rate() const {
    const int64_t choices = hits + misses;
    return choices == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(choices);
  }
  double us_per_token() const { return steps == 0 ? 0 : us / static_cast<double>(steps); }
  bool operator==(const Simulated&) const = default;
};

/// In each layer both devices compute their experts at once, then the sum needs both. As in models,
/// slots change between steps: a move begins after the step that decided it, and its expert serves
/// steps that begin after its arrival. Moves take the bus in the order of decisions. Each takes
/// costs.move_us from the host in the next step, which reads and repacks the expert. The result
/// depends on the arguments only, bit for bit.
Simulated simulate(const RoutingTrace& trace, const SimulationOptions& options,
                   const WatchSlots& watch = {});

}  // namespace moracle
