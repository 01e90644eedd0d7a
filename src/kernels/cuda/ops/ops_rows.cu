// Assigns rows to experts. Each expert has a block, which counts the slots of all earlier experts
// and then numbers its own. A thread goes through a run of neighbouring slots. Blocks pass nothing
// to each other, so one kernel suffices, without a workspace. Rows come out in the order of tokens.
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
  int64_t slots, top_k, num_experts;
  const int32_t* expert_map;
  int64_t num_local;
  RowPlan plan;
  DeviceErrorCell* device_error;
};

// Returns the local number of a slot's expert, or -1 if the slot has no local expert. Looks the id
// up only if it is valid.
__device__ int32_t local_of(const RowArgs& a, int64_t slot) {
  const int32_t id = a.ids[slot];
  if (id < 0 || id >= a.num_experts) return -1;
  const int32_t local = a.expert_map != nullptr ? a.expert_map[id] : id;
  return local < a.num_local ? local : -1;
}

// Marks a slot without a row, and reports an invalid id.
__device__ void settle_missing(const RowArgs& a, int64_t slot) {
  a.plan.slot_row[slot] = -1;
  const int32_t id = a.ids[slot];
  if (id < -1 || id >= a.num_experts) report(a.device_error, slot, id, a.num_experts, a.top_k);
}

__global__ void __launch_bounds__(kMostRowThreads) plan_rows(const RowArgs a) {
  await_earlier_kernels();
  start_later_kernels();
  // A warp has consecutive slots, and reads 32 of them at once.
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t run = (a.slots + blockDim.x - 1) / blockDim.x * 32;
  const int64_t begin = min(a.slots, threadIdx.x / 32 * run), end = min(a.slots, begin + run);
  // A rank without experts runs one iteration, too: expert 0 marks the slots without a row.
  for (int64_t e = blockIdx.x; e < max(a.num_local, int64_t{1}); e += gridDim.x) {
    int32_t before = 0, own = 0;
#pragma unroll 4
    for (int64_t slot = begin + lane; slot < end; slot += 32) {
      const int32_t local = local_of(a, slot);
      before += local >= 0 && local < e;
      own += local == e;
      if (e == 0 && local < 0) settle_missing(a, slot);
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
    for (int64_t slot = begin + lane; slot - lane < end; slot += 32) {
      const bool mine = slot < end && local_of(a, slot) == e;
      const unsigned found = __ballot_sync(kAllLanes, mine);
      if (mine) {
        const int32_t at = row + __popc(found & ((1u << lane) - 1));
        a.plan.row_token[at] = static_cast<int32_t>(slot / a.top_k);
        a.plan.row_slot[at] = static_cast<int32_t>(slot);
        a.plan.slot_row[slot] = at;
      }
      row += __popc(found);
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
  const cuda::RowArgs args{
      topk_ids,   num_tokens * top_k, top_k, num_experts,
      expert_map, num_local,          plan,  device_errors_.cell(DeviceErrorKind::kIds)};
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
