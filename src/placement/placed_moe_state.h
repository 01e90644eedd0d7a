// State of one layer's experts on two devices.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "moe/moe_access.h"
#include "placement/device_pair.h"
#include "placement/host_pool.h"
#include "placement/slots.h"

namespace moracle {

struct PlacedMoe::State {
  using StreamBuffer = DevicePair::State::StreamBuffer;
  using SlotDevice = DevicePair::State::SlotDevice;
  /// The slots of one device. Their numbers follow those of the devices before.
  struct Slots {
    FusedMoe moe;
    MapRange map;
    SlotDevice* on;
    int64_t first;       // the number of its first slot
    int64_t hits = 0;    // choices of experts here
    int64_t chosen = 0;  // likewise, of the call whose host part runs
    int64_t num_slots() const { return moe.plan().experts.num_local(); }
  };
  /// `slots`: of each device of `devices`.
  static Result<std::unique_ptr<State>> make(FusedMoe on_host, std::span<const Selection> slots,
                                             std::shared_ptr<DevicePair> devices);
  State(FusedMoe on_host, std::vector<Slots> in_slots, std::shared_ptr<DevicePair> pair);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  FusedMoe all;
  std::vector<Slots> slots;                   // of the first device, then of the others
  std::optional<HostPool> pool;               // of `all`; none: it has all experts
  std::vector<std::shared_ptr<void>> pinned;  // the weights of `all`
  std::shared_ptr<DevicePair> devices;
  ExpertSlots table;
  SlotPolicy policy;
  std::vector<int64_t> first_slots;  // of each device
  std::vector<int32_t> last;         // ids of the last call
  PlacementCounts counts;
  std::optional<std::vector<ExpertMove>> decided;       // since the last call; none: not yet
  DevicePair::State::StreamBuffers* buffers = nullptr;  // null: no call streams
  std::vector<CallWay> ways;                            // by number of tokens

  DevicePair::State& shared() const { return *devices->state_; }
  FusedMoe& first() { return slots.front().moe; }
  const FusedMoe& first() const { return slots.front().moe; }
  int64_t slot_bytes() const { return MoeAccess::expert_bytes(first()); }
  Slots& slots_with(int64_t slot);
  /// What a transfer of an expert into a slot reads and writes. The host's memory has the expert.
  std::vector<ExpertMatrix> matrices_of(int64_t expert, int64_t slot);
  /// The slot of the first device in which calls find the expert; -1: none.
  int32_t slot_on_first(int64_t expert) const { return slots.front().map.on_host[expert]; }
  /// The host's local number of an expert; -1: another rank has it, or only files.
  int64_t on_host(int64_t expert) const {
    return pool ? pool->slot_of(expert) : all.plan().experts.local()[expert];
  }
  /// The experts that calls compute here, ascending by their number on the host.
  std::vector<int32_t> experts_here() const;
  bool is_here(int64_t expert) const { return pool || on_host(expert) >= 0; }
  /// Lets the host's memory have these experts. Nothing else may use the memory then.
  Status hold(std::span<const int32_t> experts);
  /// The host's part where files have some experts.
  // Measured on the loaded layer, in microseconds: the host's part of so many tokens of zeros,
  // whose choices are spread over all experts; and the time until an expert is in a slot.
  Result<double> host_us(int64_t num_tokens);
  Result<double> transfer_us(bool& in_background);
  /// The time of one expert in a slot, for one token.
  Result<double> slot_us();
  Status compute_from_pool(const Matrix& hidden, const Matrix& sum, int64_t choices);
  /// The host's own experts of a call.
  Status compute_on_host(const Matrix& hidden, const Matrix& sum, int64_t choices, LoraIds ids);
  /// Likewise with the parts of the devices after the first: the host's, then theirs, in f32.
  Status compute_with_others(const Matrix& hidden, const Matrix& sum, int64_t choices, bool own,
                             LoraIds ids);
  Status begin_on(Slots& other, const Matrix& hidden, int64_t choices, LoraIds ids);
  Status check(const Matrix& hidden, const Matrix& output) const;
  Status apply(const Matrix& hidden, TopkIds ids, TopkWeights weights, const Matrix& output,
               Stream stream, LoraIds lora_ids);
  /// The host's part of a call that has arrived. Without `computes` it has none.
  Status run_host_part(const DevicePair::State::HostPart& part, bool computes);
  // Takes the choices of experts in slots out of the host's ids, and gives those of devices after
  // the first to them. Returns the number of the host's own.
  int64_t split(std::span<int32_t> ids);

  /// A call whose experts all run on the device with the slots.
  Status apply_streamed(const Matrix& hidden, TopkIds ids, TopkWeights weights,
                        const Matrix& output, Stream stream, LoraIds lora_ids);
  int64_t num_passes() const;
  // The buffer that holds the experts of a pass, or gets them.
  Result<StreamBuffer*> stage(int64_t pass, Stream stream);
  // Begins to fill a buffer with what is called after this pass.
  Status stage_next(int64_t pass, Stream stream);

  Status place(int64_t expert, int64_t slot, Stream stream);
  // Lets calls find an expert in a slot whose bytes are enqueued.
  Status arrive(int64_t expert, int64_t slot, Stream stream);
  /// Decides moves after a call, for begin_moves.
  void decide();
  /// Evicts experts for at most `most` moves, which are pending then. Returns their number.
  int64_t begin_moves(int64_t most);
  // Drops a pending move into the slot, if any.
  void cancel(int64_t slot);
  void evict(int64_t slot);
  void set_map(int64_t expert, int64_t slot, bool there);
  /// Moves the experts of a call into slots, in stream order, as far as there is room.
  Status fetch(const int32_t* topk_ids, int64_t choices, Stream stream);
  static Status check_slots(std::span<const Slots> slots);
  Status swap(PackedWeights&& weights, Stream stream);
};

}  // namespace moracle
