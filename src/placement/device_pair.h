// What placed layers share.
#pragma once

#include <chrono>
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

using Clock = std::chrono::steady_clock;
inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

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
  /// A device with slots.
  struct SlotDevice {
    explicit SlotDevice(std::shared_ptr<Workspace> of) : workspace(std::move(of)) {}
    std::shared_ptr<Workspace> workspace;
    std::unique_ptr<ExpertTransfers> transfers;
    int64_t from_bytes = 0, to_bytes = 0;  // of the largest expert
    std::list<MapBlock> maps;
    ExpertTransfers::Mark evicted;  // since then no map lists the slots that are filled next
    // A call on a device after the first: copies of its input, and its part of the output.
    Buffer hidden, ids, weights, lora_ids, output;
    Buffer host_ids, host_output;  // pinned host memory

    Device& device() const { return workspace->device(); }
    /// Makes the memory of transfers large enough for a layer. Errors: memory.
    Status reserve(int64_t host_expert_bytes, int64_t slot_bytes);
    /// Makes the memory of calls large enough. Errors: memory.
    Status reserve_calls(const HostLinkSize& size);
    /// A map of no experts in slots. Errors: memory.
    Result<MapRange> take_map(int64_t num_experts);
    /// Enqueues maps that have changed.
    Status flush_maps(Stream stream);
  };
  /// An expert on its way into a slot that is empty meanwhile.
  struct PendingMove {
    Layer* layer;
    ExpertMove move;
    SlotDevice* to;
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

  std::shared_ptr<Workspace> host;
  std::deque<SlotDevice> slot_devices;  // the first one has the caller's memory
  std::unique_ptr<HostLink> link;       // to the first one
  HostLinkSize link_size;
  std::deque<PendingMove> pending;
  MoveBudget budget{0};
  int64_t step = 0;            // calls of move()
  std::vector<Layer*> layers;  // in the order of calls
  std::list<StreamBuffers> streams;
  double host_waits_us = 0, slots_wait_us = 0;  // the latter where the link does not tell
  bool moves = false;                           // move() is in use
  Layer* undecided = nullptr;                   // the layer whose host part ran last
  Buffer partial;                               // a pass's part of the output
  /// f32, four of them: shares of a call that files have, then parts of several devices.
  Buffer host_sums;
  std::vector<HostPart>* recording = nullptr;

  SlotDevice& first() { return slot_devices.front(); }
  Device& device() const { return slot_devices.front().device(); }
  /// The caller's stream belongs to the first device; others use their own.
  Stream stream_of(const SlotDevice& device, Stream stream) const {
    return &device == &slot_devices.front() ? stream : Stream();
  }
  /// Locks of the devices after the first; the caller holds that of the first.
  std::vector<DeviceLock> lock_others() const;
  /// Waits for the input of a call, on the clock.
  Status wait_for_call(Stream stream);
  /// Makes the memory between the devices large enough for a layer. Errors: memory.
  Status reserve(const Plan& slots_plan);
  /// Makes host_sums large enough for a layer. Errors: memory.
  Status reserve_sums(const Plan& host_plan);
  /// Enqueues maps that have changed.
  Status flush_maps(Stream stream);
  /// The host waits for all transfers.
  Status finish_transfers();
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
