// Assigns rows to experts. Each expert has a block, which counts the slots of all earlier experts
// and then numbers its own. A warp goes through a run of neighbouring slots, four by a lane. Blocks
// pass nothing to each other, so one kernel suffices, without a workspace. Rows come out in the
// order of tokens.
#include <algorithm>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/report.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kRowThreads = 512, kMostRowThreads = 1024;

struct RowArgs {
  const int32_t* ids;
  int64_t slots;
  int top_k, num_experts;
  const int32_t* expert_map;
  int num_local;
  RowPlan plan;
  DeviceErrorCell* device_error;
  bool aligned;  // ids can be read by four
};

constexpr int kLaneSlots = 4, kWarpSlots = 32 * kLaneSlots;  // at once

// The local numbers of four slots' experts, or -1 for slots without a local expert.
struct FourSlots {
  int32_t id[kLaneSlots] = {-1, -1, -1, -1}, local[kLaneSlots];
  __device__ FourSlots(const RowArgs& a, int64_t slot) {
    if (a.aligned && slot + kLaneSlots <= a.slots) {
      const int4 four = *reinterpret_cast<const int4*>(a.ids + slot);
      id[0] = four.x, id[1] = four.y, id[2] = four.z, id[3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        if (slot + j < a.slots) id[j] = a.ids[slot + j];
      }
    }
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) {
      // Look the id up only if it is valid.
      const bool valid = static_cast<unsigned>(id[j]) < static_cast<unsigned>(a.num_experts);
      const int32_t found = valid && a.expert_map != nullptr ? a.expert_map[id[j]] : id[j];
      local[j] = valid && found < a.num_local ? found : -1;
    }
  }
};

// Marks slots without a row, and reports invalid ids.
__device__ void settle_missing(const RowArgs& a, int64_t slot, const FourSlots& four) {
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) {
    if (four.local[j] >= 0 || slot + j >= a.slots) continue;
    a.plan.slot_row[slot + j] = -1;
    if (four.id[j] < -1 || four.id[j] >= a.num_experts)
      report(a.device_error, slot + j, four.id[j], a.num_experts, a.top_k);
  }
}

__global__ void __launch_bounds__(kMostRowThreads) plan_rows(const RowArgs a) {
  await_earlier_kernels();
  start_later_kernels();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t step = int64_t{blockDim.x} * kLaneSlots;
  const int64_t run = (a.slots + step - 1) / step * kWarpSlots;
  const int64_t begin = threadIdx.x / 32 * run, end = min(a.slots, begin + run);
  // A rank without experts runs one iteration, too: expert 0 marks the slots without a row.
  for (int e = static_cast<int>(blockIdx.x); e < max(a.num_local, 1);
       e += static_cast<int>(gridDim.x)) {
    int32_t before = 0, own = 0;
#pragma unroll 4
    for (int64_t slot = begin + lane * kLaneSlots; slot < end; slot += kWarpSlots) {
      const FourSlots four(a, slot);
#pragma unroll
      for (const int32_t local : four.local) {
        before += static_cast<unsigned>(local) < static_cast<unsigned>(e);  // not -1
        own += local == e;
      }
      if (e == 0) settle_missing(a, slot, four);
    }
    const int32_t first = block_sum(before);
    const Rank rank = block_scan(own);
    if (threadIdx.x == 0) {
      a.plan.expert_offsets[e] = first;
      if (e >= a.num_local - 1) a.plan.expert_offsets[a.num_local] = first + rank.total;
    }
    if (__ballot_sync(kAllLanes, own != 0) == 0) continue;
    int32_t row = first + __shfl_sync(kAllLanes, rank.before, 0);
#pragma unroll 4
    for (int64_t slot = begin; slot < end; slot += kWarpSlots) {
      const int64_t mine = slot + lane * kLaneSlots;
      const FourSlots four(a, mine);
      int at = row;
#pragma unroll
      for (const int32_t local : four.local) {
        const unsigned found = __ballot_sync(kAllLanes, local == e);
        at += __popc(found & ((1u << lane) - 1));
        row += __popc(found);
      }
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        if (four.local[j] != e) continue;
        const auto number = static_cast<unsigned>(mine + j);
        a.plan.row_token[at] = static_cast<int32_t>(number / static_cast<unsigned>(a.top_k));
        a.plan.row_slot[at] = static_cast<int32_t>(number);
        a.plan.slot_row[number] = at++;
      }
    }
  }
}

__global__ void plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                  RowPlan plan, DeviceErrorCell* device_error) {
  auto count_of = [&](int64_t e) {
    return static_cast<int32_t>(min(max(static_cast<int64_t>(counts[e]), int64_t{0}), max_tokens));
  };
  for (int64_t e = blockIdx.x; e < num_experts; e += gridDim.x) {
    int32_t before = 0;
    for (int64_t other = threadIdx.x; other < e; other += kRowThreads) before += count_of(other);
    const int32_t row = block_sum(before), count = count_of(e);
    if (threadIdx.x == 0) {
      plan.expert_offsets[e] = row;
      if (e == num_experts - 1) plan.expert_offsets[num_experts] = row + count;
      if (count != counts[e]) report(device_error, e, counts[e], max_tokens, 1);
    }
    for (int64_t i = threadIdx.x; i < max_tokens; i += kRowThreads) {
      const auto slot = static_cast<int32_t>(e * max_tokens + i);
      const auto at = static_cast<int32_t>(row + i);
      plan.slot_row[slot] = i < count ? at : -1;
      if (i >= count) continue;
      plan.row_slot[at] = slot;
      plan.row_token[at] = slot;
    }
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k,
                          int64_t num_experts, const int32_t* expert_map, int64_t num_local,
                          const RowPlan& plan, Stream stream) {
  const cuda::RowArgs args{topk_ids,
                           num_tokens * top_k,
                           static_cast<int>(top_k),
                           static_cast<int>(num_experts),
                           expert_map,
                           static_cast<int>(num_local),
                           plan,
                           device_errors_.cell(DeviceErrorKind::kIds),
                           reinterpret_cast<uintptr_t>(topk_ids) % sizeof(int4) == 0};
  return cuda::launch_early(queue_, stream, "plan_rows", cuda::plan_rows,
                            std::max<int64_t>(num_local, 1),
                            args.slots > 4096 ? cuda::kMostRowThreads : cuda::kRowThreads, 0, args);
}

Status CudaOps::plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                  const RowPlan& plan, Stream stream) {
  return cuda::launch(queue_, stream, "plan_batched_rows", cuda::plan_batched_rows, num_experts,
                      cuda::kRowThreads, 0, counts, num_experts, max_tokens, plan,
                      device_errors_.cell(DeviceErrorKind::kCounts));
}

}  // namespace moracle
