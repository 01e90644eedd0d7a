// State of one layer's experts on two devices.
#pragma once

#include <span>
#include <vector>

#include "moe/moe_access.h"
#include "placement/device_pair.h"
#include "placement/slots.h"

namespace moracle {

struct PlacedMoe::State {
  State(FusedMoe on_host, FusedMoe in_slots, std::shared_ptr<DevicePair> pair)
      : all(std::move(on_host)),
        slots(std::move(in_slots)),
        devices(std::move(pair)),
        table(all.plan().layer.num_experts, slots.plan().experts.num_local()),
        policy(table.num_experts(), {}),
        local(table.num_experts(), -1) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const DeviceLock lock = shared().device().lock();
    for (int64_t slot = 0; slot < table.num_slots(); ++slot) cancel(slot);
  }

  FusedMoe all, slots;
  std::shared_ptr<DevicePair> devices;
  ExpertSlots table;
  SlotPolicy policy;
  std::vector<int32_t> local;  // [num_experts]: the slot of each expert that calls find there
  std::vector<int32_t> last;   // ids of the last call
  PlacementCounts counts;

  DevicePair::State& shared() const { return *devices->state_; }
  Status check(const Matrix& hidden, const Matrix& output) const;
  Status apply(const Matrix& hidden, TopkIds ids, TopkWeights weights, const Matrix& output,
               Stream stream);
  // Takes the choices of experts in slots out of the host's ids. Returns the numbers of both.
  struct Split {
    int64_t in_slots = 0, on_host = 0;
  };
  Split split(std::span<int32_t> ids);
  Status place(int64_t expert, int64_t slot, Stream stream);
  Status fill(int64_t expert, int64_t slot, Stream stream);
  // Makes the packed bytes of an arriving expert those of its slot.
  Status arrive(int64_t expert, int64_t slot, Stream stream);
  Result<int64_t> move(int64_t most, Stream stream);
  // Packs the next slice of the first pending move.
  static Status pack_pending(DevicePair::State& shared);
  // Lets the first pending move arrive if it is packed.
  static Status arrive_pending(DevicePair::State& shared, Stream stream);
  // Drops a pending move into the slot, if any.
  void cancel(int64_t slot);
  Status evict(int64_t slot, Stream stream);
  Status set_local(int64_t expert, int32_t slot, Stream stream);
  Status swap(PackedWeights&& weights, Stream stream);
};

}  // namespace moracle
