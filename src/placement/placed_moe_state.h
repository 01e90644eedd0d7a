// State of one layer's experts on two devices.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "moe/moe_access.h"
#include "placement/device_pair.h"
#include "placement/slots.h"

namespace moracle {

struct PlacedMoe::State {
  using StreamBuffer = DevicePair::State::StreamBuffer;
  State(FusedMoe on_host, FusedMoe in_slots, MapRange range, std::shared_ptr<DevicePair> pair);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  FusedMoe all, slots;
  std::vector<std::shared_ptr<void>> pinned;  // the weights of `all`
  std::shared_ptr<DevicePair> devices;
  ExpertSlots table;
  SlotPolicy policy;
  MapRange map;
  std::span<int32_t> local;   // of `map`: the slot of each expert that calls find there
  std::vector<int32_t> last;  // ids of the last call
  PlacementCounts counts;
  std::optional<std::vector<ExpertMove>> decided;       // since the last call; none: not yet
  DevicePair::State::StreamBuffers* buffers = nullptr;  // null: no call streams
  int64_t stream_from = std::numeric_limits<int64_t>::max();

  DevicePair::State& shared() const { return *devices->state_; }
  Status check(const Matrix& hidden, const Matrix& output) const;
  Status apply(const Matrix& hidden, TopkIds ids, TopkWeights weights, const Matrix& output,
               Stream stream);
  /// The host's part of a call of `num_tokens` that has arrived. Without `computes` it has none.
  Status run_host_part(int64_t num_tokens, bool computes);
  // Takes the choices of experts in slots out of the host's ids. Returns the number of the others.
  int64_t split(std::span<int32_t> ids);

  /// A call whose experts all run on the device with the slots.
  Status apply_streamed(const Matrix& hidden, TopkIds ids, TopkWeights weights,
                        const Matrix& output, Stream stream);
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
  void set_local(int64_t expert, int32_t slot);
  Status swap(PackedWeights&& weights, Stream stream);
};

}  // namespace moracle
