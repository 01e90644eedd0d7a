// What placed layers share.
#pragma once

#include <deque>
#include <list>
#include <span>
#include <vector>

#include "kernels/host_link.h"
#include "kernels/kernel_device.h"
#include "kernels/weights/expert_transfers.h"
#include "moracle/placement.h"
#include "placement/policy.h"

namespace moracle {

/// Expert maps of some layers, [num_experts] each: one upload changes all of them.
struct MapBlock {
  Buffer on_device;
  std::vector<int32_t> on_host;
  size_t used = 0;
  bool changed = false;
};
struct MapRange {
  MapBlock* block = nullptr;
  std::span<int32_t> on_host;  ///< experts to slots; -1: in none
  Buffer on_device;
};

struct DevicePair::State {
  using Layer = PlacedMoe::State;
  /// An expert on its way into a slot that is empty meanwhile.
  struct PendingMove {
    Layer* layer;
    ExpertMove move;
    int64_t transfer = 0;  ///< 0: not begun
  };
  /// Memory for experts of one layer after another, in calls with many tokens.
  struct StreamBuffer {
    FusedMoe experts;
    const Layer* layer = nullptr;  ///< whose experts are there or on their way; null: none
    int64_t pass = -1;             ///< which of them, in shares of the memory's size
    int64_t mapped = -1;           ///< the pass that the expert map is for
    int64_t transfer = 0;
    ExpertTransfers::Mark used = nullptr;  ///< the last call that read it
  };
  /// Two of them for layers that are alike: one is filled while the other is read.
  struct StreamBuffers {
    StreamBuffer two[2];
    int next = 0;
    int64_t capacity() const { return two[0].experts.plan().experts.num_local(); }
  };
  /// The host's part of a recorded call.
  struct HostPart {
    Layer* layer;
    int64_t num_tokens;
    bool adapts;  ///< tokens have adapter ids
  };

  std::shared_ptr<Workspace> host, slots;
  std::unique_ptr<HostLink> link;
  HostLinkSize link_size;
  std::unique_ptr<ExpertTransfers> transfers;
  int64_t from_bytes = 0, to_bytes = 0;  // of the largest expert
  std::deque<PendingMove> pending;
  MoveBudget budget{0};
  std::vector<Layer*> layers;  // in the order of calls
  std::list<StreamBuffers> streams;
  std::list<MapBlock> maps;
  ExpertTransfers::Mark evicted;  // since then no map lists the slots that are filled next
  bool moves = false;             // move() is in use
  Layer* undecided = nullptr;     // the layer whose host part ran last
  Buffer partial;                 // a pass's part of the output
  Buffer host_sums;               // f32, two of them: shares of a call that files have
  std::vector<HostPart>* recording = nullptr;

  Device& device() const { return slots->device(); }
  /// Makes the memory large enough for a layer. Errors: memory.
  Status reserve(const Plan& slots_plan, int64_t host_expert_bytes, int64_t slot_bytes);
  /// A map of no experts in slots. Errors: memory.
  Result<MapRange> take_map(int64_t num_experts);
  /// Enqueues maps that have changed.
  Status flush_maps(Stream stream);
  /// Forgets what stream buffers hold of a layer.
  void forget(const Layer* layer);
  /// Ends moves whose experts have arrived.
  Status arrive(Stream stream);
  /// Begins the transfer of the first move that has none. While the device waits for the host, only
  /// one that does not wait for the device.
  Status begin_next(bool device_waits, Stream stream);
  /// What the host does while it waits for the device.
  Status use_wait(Stream stream);
  /// The host's parts of calls whose device work is enqueued.
  Status run(std::span<const HostPart> parts, Stream stream);
};

}  // namespace moracle
