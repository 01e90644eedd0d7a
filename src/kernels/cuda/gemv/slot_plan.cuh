// Groups the rows of a few tokens by expert. Each CTA of a kernel repeats this, which is faster
// than a separate kernel.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/report.cuh"
#include "kernels/cuda/gemv/gemv_args.h"

namespace moracle::cuda {

/// Rows of one expert that share a reading of its weights: order[first] to order[first + rows - 1].
struct SlotGroup {
  int16_t expert, first, rows;
};

struct SlotPlan {
  int num_groups;
  int16_t expert[kMostGemvSlots];  ///< of each slot; -1: none
  int16_t order[kMostGemvSlots];   ///< slots sorted by expert, stably; those without one come last
  int16_t source[kMostGemvSlots];  ///< row of x of each position in `order`
  int16_t group[kMostGemvSlots];   ///< of each position in `order`
  SlotGroup groups[kMostGemvSlots];
  /// The expert of a position in `order`.
  __device__ int expert_at(int position) const { return expert[order[position]]; }
};
/// Memory that only make_slot_plan uses: expert and slot, by slot, padded to four.
using SlotPlanKeys = uint32_t[kMostGemvSlots];

/// Returns the local number of a slot's expert, or -1.
__device__ inline int expert_of_slot(const GemvSlots& s, int slot) {
  if (s.ids == nullptr) return 0;
  const int32_t id = s.ids[slot];
  if (id < 0 || id >= s.num_experts) return -1;
  const int32_t local = s.expert_map != nullptr ? s.expert_map[id] : id;
  return local < s.num_local ? local : -1;
}

// Finds the groups in the sorted slots. One warp calls.
__device__ inline void group_slots(int num_slots, int most_rows, SlotPlan& plan) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned upto = 0xffffffffu >> (31 - lane);  // lanes up to this one
  int groups = 0, begin = 0, positions = 0;          // `begin`: first position of the expert so far
  for (int first = 0; first < num_slots; first += 32) {
    const int position = first + lane;
    const int expert = position < num_slots ? plan.expert_at(position) : -1;
    const bool there = expert >= 0;
    const bool opens = there && (position == 0 || plan.expert_at(position - 1) != expert);
    const unsigned openers = __ballot_sync(kAllLanes, opens) & upto;
    if (openers != 0) begin = first + 31 - __clz(openers);
    const bool leads = there && (position - begin) % most_rows == 0;
    const unsigned leaders = __ballot_sync(kAllLanes, leads);
    const int group = groups + __popc(leaders & upto) - 1;
    if (there) plan.group[position] = static_cast<int16_t>(group);
    if (leads)
      plan.groups[group] = {static_cast<int16_t>(expert), static_cast<int16_t>(position), 0};
    groups += __popc(leaders);
    positions += __popc(__ballot_sync(kAllLanes, there));
    begin = __shfl_sync(kAllLanes, begin, 31);
  }
  __syncwarp();
  for (int group = lane; group < groups; group += 32) {
    const int end = group + 1 < groups ? plan.groups[group + 1].first : positions;
    plan.groups[group].rows = static_cast<int16_t>(end - plan.groups[group].first);
  }
  if (lane == 0) plan.num_groups = groups;
}

/// Groups hold at most `most_rows` rows. All threads call; the plan is complete on return. `keys`
/// is 16-byte aligned.
__device__ inline void make_slot_plan(const GemvSlots& s, bool x_of_tokens, int most_rows,
                                      SlotPlan& plan, SlotPlanKeys& keys) {
  const int slot = static_cast<int>(threadIdx.x);
  uint32_t key = 0xffffffffu;
  if (slot < s.num_slots) {
    const int expert = expert_of_slot(s, slot);
    plan.expert[slot] = static_cast<int16_t>(expert);
    key = static_cast<uint32_t>(expert) << 16 | static_cast<uint32_t>(slot);
  }
  if (slot < (s.num_slots + 3) / 4 * 4) keys[slot] = key;
  __syncthreads();
  if (slot < s.num_slots) {
    int position = 0;  // slots of earlier experts, and earlier slots of this one
#pragma unroll 2
    for (int other = 0; other < s.num_slots; other += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(keys + other);
      position += (four.x < key) + (four.y < key) + (four.z < key) + (four.w < key);
    }
    plan.order[position] = static_cast<int16_t>(slot);
    plan.source[position] = static_cast<int16_t>(x_of_tokens ? slot / s.top_k : slot);
  }
  __syncthreads();
  if (slot < 32) group_slots(s.num_slots, most_rows, plan);
  __syncthreads();
}

/// A CTA's share of all units: CTAs differ by one unit at most.
struct UnitShare {
  int first, count;
  __device__ explicit UnitShare(int units)
      : UnitShare(units, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)) {}
  __device__ UnitShare(int units, int block, int blocks) {
    const int each = units / blocks, more = units - each * blocks;
    first = block * each + min(block, more), count = each + (block < more ? 1 : 0);
  }
};

/// Marks a slot without a row, and reports an invalid id. `expert`: of the slot.
__device__ inline void settle_slot(const GemvSlots& s, int slot, int expert) {
  if (s.slot_row != nullptr) s.slot_row[slot] = expert >= 0 ? slot : -1;
  if (s.ids == nullptr) return;
  const int32_t id = s.ids[slot];
  if (s.id_errors != nullptr && (id < -1 || id >= s.num_experts))
    report(s.id_errors, slot, id, s.num_experts, s.top_k);
}
/// The first CTA settles all slots.
__device__ inline void settle_slots(const GemvSlots& s, const SlotPlan& plan) {
  const int slot = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && slot < s.num_slots) settle_slot(s, slot, plan.expert[slot]);
}

}  // namespace moracle::cuda
