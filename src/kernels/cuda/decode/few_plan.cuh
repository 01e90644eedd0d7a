// Plans the rows of a few tokens in one block. Each block of a kernel does so by itself, which is
// faster than a kernel before it.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/decode/few_args.h"
#include "kernels/cuda/device/report.cuh"

namespace moracle::cuda {

/// Rows of one expert that share a reading of its weights: order[first] to order[first + rows - 1].
struct FewGroup {
  int16_t expert, first, rows;
};

struct FewPlan {
  int num_groups;
  int16_t expert[kMostFewSlots];  ///< of each slot; -1: none
  int16_t place[kMostFewSlots];   ///< of each slot in `order`
  int16_t order[kMostFewSlots];   ///< slots sorted by expert, stably
  int16_t source[kMostFewSlots];  ///< row of x of each place in `order`
  bool leads[kMostFewSlots];      ///< the slot is the first of its group
  FewGroup groups[kMostFewSlots];
};

/// Returns the local number of a slot's expert, or -1.
__device__ inline int few_expert(const FewSlots& s, int slot) {
  if (s.ids == nullptr) return 0;
  const int32_t id = s.ids[slot];
  if (id < 0 || id >= s.num_experts) return -1;
  const int32_t local = s.expert_map != nullptr ? s.expert_map[id] : id;
  return local < s.num_local ? local : -1;
}

/// Groups hold at most `most_rows` rows. All threads call; the plan is complete on return.
__device__ inline void make_few_plan(const FewSlots& s, bool x_of_tokens, int most_rows,
                                     FewPlan& plan) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot == 0) plan.num_groups = 0;
  int expert = -1;
  if (slot < s.num_slots) {
    expert = few_expert(s, slot);
    plan.expert[slot] = static_cast<int16_t>(expert);
  }
  __syncthreads();
  int before = 0, rank = 0, rows = 0;  // slots of earlier experts, and of this one
  if (expert >= 0) {
    for (int other = 0; other < s.num_slots; ++other) {
      const int theirs = plan.expert[other];
      before += theirs >= 0 && theirs < expert;
      rank += theirs == expert && other < slot;
      rows += theirs == expert;
    }
  }
  const int place = before + rank;
  const bool leads = expert >= 0 && rank % most_rows == 0;
  if (slot < s.num_slots) {
    plan.place[slot] = static_cast<int16_t>(place);
    plan.leads[slot] = leads;
    if (expert >= 0) {
      plan.order[place] = static_cast<int16_t>(slot);
      plan.source[place] = static_cast<int16_t>(x_of_tokens ? slot / s.top_k : slot);
    }
  }
  __syncthreads();
  if (leads) {
    int group = 0;
    for (int other = 0; other < s.num_slots; ++other)
      group += plan.leads[other] && plan.place[other] < place;
    plan.groups[group] = {static_cast<int16_t>(expert), static_cast<int16_t>(place),
                          static_cast<int16_t>(min(most_rows, rows - rank))};
    atomicAdd(&plan.num_groups, 1);
  }
  __syncthreads();
}

/// The first block marks slots without a row, and reports invalid ids.
__device__ inline void settle_few_slots(const FewSlots& s, const FewPlan& plan) {
  const int slot = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0 || slot >= s.num_slots) return;
  if (s.slot_row != nullptr) s.slot_row[slot] = plan.expert[slot] >= 0 ? slot : -1;
  if (s.ids == nullptr) return;
  const int32_t id = s.ids[slot];
  if (s.id_errors != nullptr && (id < -1 || id >= s.num_experts))
    report(s.id_errors, slot, id, s.num_experts, s.top_k);
}

}  // namespace moracle::cuda
