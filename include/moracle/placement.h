// Experts of a layer on two devices: host memory holds all of them, and slots of a GPU hold those
// that are used most. Both compute at the same time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "moracle/moe.h"

namespace moracle MORACLE_API {

/// Measured costs of one expert, in microseconds, for the tokens of a decode step.
struct ExpertCosts {
  double host_us = 0;  ///< computed on the device that holds all experts
  double slot_us = 0;  ///< computed in a slot
  double move_us = 0;  ///< the host's time for a move into a slot: reading and packing
  int64_t bytes = 0;   ///< of the packed expert in a slot
};

/// What decides whether an expert moves into a slot.
struct PolicyOptions {
  ExpertCosts costs;
  /// Steps after which the use of an expert counts half. Small: the policy is LRU; large: LFU.
  double half_life = 4;
};

/// What a call does with the experts that it lacks in slots.
enum class CallWay : uint8_t {
  kDivided,   ///< the host computes them, while slots compute the others
  kFetched,   ///< they move into slots first; the host computes those that find no room
  kStreamed,  ///< all experts cross to the device with the slots
};

/// What a layer takes on this machine.
struct PlacedTimes {
  ExpertCosts costs;
  double transfer_us = 0;  ///< until an expert is in a slot; 0: there are no slots
  double stream_us = 0;    ///< until all experts are on the device with the slots
  /// The fastest way of 1, 2, … tokens, up to the most that a call has.
  std::vector<CallWay> ways = {};
  /// With more slots than that, calls would wait for them longer than for the host.
  int64_t balanced_slots = 0;
};

/// The way of a call. See PlacedMoe::set_ways.
inline CallWay way_of(std::span<const CallWay> ways, int64_t num_tokens) {
  if (ways.empty()) return CallWay::kDivided;
  const auto last = static_cast<int64_t>(ways.size()) - 1;
  return ways[static_cast<size_t>(num_tokens - 1 < last ? num_tokens - 1 : last)];
}

/// What the calls of a placed layer found.
struct PlacementCounts {
  int64_t hits = 0;    ///< choices of experts in slots
  int64_t misses = 0;  ///< choices that the host computed
  int64_t moves = 0;   ///< experts that moved into slots
  int64_t bytes_moved = 0;
  int64_t streamed_calls = 0;  ///< calls whose experts all ran on the device with the slots
  int64_t bytes_streamed = 0;
  int64_t reads = 0;  ///< experts that were read from files, because host memory did not hold them
  int64_t bytes_read = 0;                     ///< as packed
  std::vector<int64_t> hits_of_devices = {};  ///< `hits` of each device with slots
  /// Of a model: the time of its steps on the host's clock, and the waits in it. Microseconds.
  double steps_us = 0;
  double host_waits_us = 0;  ///< the host waited for a device
  /// The first device with slots waited for the host. Negative: this device does not tell.
  double slots_wait_us = 0;
};

/// Bytes of experts that may be on their way into slots at a time, unless DevicePair is told
/// another number. After the first steps: half more than the bus moves in a step.
inline constexpr int64_t kBytesInFlight = 256 << 20;

/// The devices of placed layers that run one after another, and the memory between them. `host`:
/// workspace of the device that holds all experts, whose memory the host sees. `slots`: workspace
/// of the device with the slots. Both may be workspaces of other layers, too. Two different
/// devices, or two workspaces of one. `bytes_in_flight`: of all experts that are on their way into
/// slots at a time, at least one.
class DevicePair {
 public:
  DevicePair(std::shared_ptr<Workspace> host, std::shared_ptr<Workspace> slots,
             int64_t bytes_in_flight = kBytesInFlight);
  ~DevicePair();
  /// A further device with slots. Each layer then has slots on all of them, and the first one
  /// computes everything else. Call it before the first layer is made. The devices pack experts
  /// alike; each has a workspace of its own.
  void add(std::shared_ptr<Workspace> slots);

  /// Lets experts that have arrived serve later calls. Then begins moves of the last call's experts
  /// into slots, at most `most` in each layer, those that gain most, where this pays. The slots are
  /// empty until the experts arrive, beside other work where the device can. Returns the number of
  /// moves. Call it between steps. Errors: those of the device.
  Result<int64_t> move(int64_t most, Stream stream = {});
  /// Device::record of the device with the slots, for work with calls of placed layers. A replay
  /// also runs the host's parts of these calls, so it returns when the last one is done. Null where
  /// the device cannot wait for the host. Errors: as Device::record.
  Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue, Stream stream = {});
  /// Adds the waits of all calls so far to host_waits_us and slots_wait_us. The clocks run around
  /// waits that calls have anyway.
  void add_waits(PlacementCounts& to) const;

 private:
  friend class PlacedMoe;
  struct State;
  std::unique_ptr<State> state_;
};

/// Request::parallel of a selection for `num_slots` slots of a layer. Errors: a number outside
/// [0, num_experts].
Result<Parallelism> slots_of(int64_t num_experts, int64_t num_slots);

/// The experts of one layer on two devices. The output is the sum of both devices' parts, in fixed
/// order: with the same experts in slots, equal calls give equal bits. Every expert computes in the
/// arithmetic of the device that runs it, so a move may change bits, within the scheme's bounds.
class PlacedMoe {
 public:
  /// Reads and packs all experts for the host. Slots are empty. `all`: the selection for the host.
  /// `slots`: those of the devices with slots, with the parallelism of slots_of. Errors: as
  /// FusedMoe::make; batched activations; slots for other adapters than the host's; a backend on
  /// the host whose layout cannot be packed again. With the experts of one rank on the host, slots
  /// hold these alone, and the sum of all ranks' outputs is the layer's.
  static Result<PlacedMoe> make(DescribedWeights&& weights, const Selection& all,
                                std::span<const Selection> slots,
                                std::shared_ptr<DevicePair> devices, const Progress& progress = {});
  static Result<PlacedMoe> make(DescribedWeights&& weights, const Selection& all,
                                const Selection& slots, std::shared_ptr<DevicePair> devices,
                                const Progress& progress = {}) {
    return make(std::move(weights), all, std::span(&slots, 1), std::move(devices), progress);
  }
  /// Likewise with memory of the host for some of the experts: `some` is the selection for the
  /// host, with the parallelism of slots_of. The others are read from the checkpoint's mapped files
  /// when a call needs them, in place of those used longest ago; calls that need more experts than
  /// there is memory run share after share. The description stays open. `deterministic`: the order
  /// of the sum depends on the ids of the call alone. Errors: also adapters; those of reading,
  /// which later calls have, too.
  static Result<PlacedMoe> make_from_files(DescribedWeights&& weights, const Selection& some,
                                           std::span<const Selection> slots,
                                           std::shared_ptr<DevicePair> devices, bool deterministic,
                                           const Progress& progress = {});
  static Result<PlacedMoe> make_from_files(DescribedWeights&& weights, const Selection& some,
                                           const Selection& slots,
                                           std::shared_ptr<DevicePair> devices, bool deterministic,
                                           const Progress& progress = {}) {
    return make_from_files(std::move(weights), some, std::span(&slots, 1), std::move(devices),
                           deterministic, progress);
  }
  PlacedMoe(PlacedMoe&&) noexcept;
  PlacedMoe& operator=(PlacedMoe&&) noexcept;
  ~PlacedMoe();

  /// FusedMoe::apply, all pointers in memory of the device with the slots. hidden and output:
  /// [num_tokens, hidden_size] in the activation dtype of that device, without gaps. The host waits
  /// for the ids and the activations: record the call with DevicePair::record. Errors: as
  /// FusedMoe::apply.
  Status apply(const ConstMatrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {}, LoraIds lora_ids = {});

  /// FusedMoe::set_adapter and clear_adapter, on both devices.
  Status set_adapter(int32_t id, const LoraWeights& adapter);
  Status clear_adapter(int32_t id);

  /// Moves an expert into a slot; the slot's expert is evicted. Later calls find it there. Errors:
  /// an expert that the host does not have, or a slot that does not exist; those of the device. The
  /// slot is then empty, and the host computes its expert.
  Status place(int64_t expert, int64_t slot, Stream stream = {});
  /// Empties a slot.
  Status evict(int64_t slot, Stream stream = {});
  /// The expert in each slot, or on its way there; -1: none. Slots of the first device come first.
  std::vector<int32_t> placed() const;

  /// Costs of the policy of DevicePair::move. Forgets what calls have chosen.
  void set_policy(const PolicyOptions& options);
  /// Makes memory in which calls with many tokens get all experts, in shares of as many as
  /// `selection` has (the parallelism of slots_of), while the device computes with the share
  /// before. Layers that are alike share the memory, which is taken twice. Errors: as make; memory.
  Status stream(const Selection& selection);
  /// The ways of calls with 1, 2, … tokens; longer calls go the last way. Without stream() none is
  /// streamed; experts of several devices or of files are not fetched. Before this, the host
  /// computes what slots lack.
  void set_ways(std::vector<CallWay> ways);
  /// Calls of at least so many tokens are streamed, and no call fetches.
  void set_stream_from(int64_t num_tokens);
  /// Measures this layer: tenths of a second. Slots and weights stay as they are. Errors: those of
  /// the devices.
  Result<PlacedTimes> measure();
  PlacementCounts counts() const;
  /// Bytes of one expert in a slot.
  int64_t slot_bytes() const;
  /// The number of slots of each device.
  std::vector<int64_t> slots_of_devices() const;

  /// As FusedMoe::pack and swap. Slots get their experts again from the new weights; after an error
  /// there, the new weights serve, and slots may be empty.
  Result<PackedWeights> pack(DescribedWeights&& weights, const Progress& progress = {}) const;
  Status swap(PackedWeights&& weights, Stream stream = {});

  const Plan& host_plan() const;
  const Plan& slots_plan() const;

 private:
  friend class DevicePair;
  struct State;
  explicit PlacedMoe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace MORACLE_API
