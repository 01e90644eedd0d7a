// Assigns rows to experts. Each expert has a block or two, which count the slots of all earlier
// experts and then number its own. A warp goes through a run of neighbouring slots, four by a lane.
// Blocks exchange no data, so one kernel suffices, without a workspace. Rows come out in the order
// of tokens.
#include <algorithm>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/report.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/pdl.cuh"

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

// The ids of four slots, -1 past the last slot.
struct SlotIds {
  int32_t id[kLaneSlots] = {-1, -1, -1, -1};
  __device__ SlotIds(const RowArgs& a, int64_t slot) {
    if (a.aligned && slot + kLaneSlots <= a.slots) {
      const int4 four = *reinterpret_cast<const int4*>(a.ids + slot);
      id[0] = four.x, id[1] = four.y, id[2] = four.z, id[3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        if (slot + j < a.slots) id[j] = a.ids[slot + j];
      }
    }
  }
};

// Marks slots without a row, and reports invalid ids.
__device__ void settle_missing(const RowArgs& a, int64_t slot) {
  const SlotIds four(a, slot);
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) {
    const int32_t id = four.id[j];
    if (slot + j >= a.slots) continue;
    // Look the id up only if it is valid.
    const bool valid = static_cast<unsigned>(id) < static_cast<unsigned>(a.num_experts);
    const int32_t local = valid && a.expert_map != nullptr ? a.expert_map[id] : id;
    if (valid && static_cast<unsigned>(local) < static_cast<unsigned>(a.num_local)) continue;
    a.plan.slot_row[slot + j] = -1;
    if (id < -1 || id >= a.num_experts)
      report(a.device_error, slot + j, id, a.num_experts, a.top_k);
  }
}

// The warps of all blocks share the slots.
__device__ void settle_missing_of_warp(const RowArgs& a) {
  const int64_t warps = int64_t{blockDim.x / 32} * gridDim.x;
  const int64_t warp = int64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x;
  for (int64_t slot = warp * kWarpSlots + threadIdx.x % 32 * kLaneSlots; slot < a.slots;
       slot += warps * kWarpSlots)
    settle_missing(a, slot);
}

// Ids of the experts that are local and before one of them, as bits. With a map, reading a bit
// takes less time than reading the map for each slot: 32 lanes read at most a few words.
struct EarlierExperts {
  int32_t id = -1;  // of the expert itself
  int32_t num_experts, local;
  const uint32_t* bits = nullptr;

  __device__ EarlierExperts(const RowArgs& a, int e) : num_experts(a.num_experts), local(e) {
    if (a.expert_map == nullptr) {
      if (e < a.num_local) id = e;
      return;
    }
    extern __shared__ uint32_t words[];
    __shared__ int32_t found;
    bits = words;
    __syncthreads();  // the previous expert's bits have been used
    if (threadIdx.x == 0) found = -1;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < words_of(num_experts) * 32;
         i += static_cast<int>(blockDim.x)) {
      const int32_t there = i < num_experts ? a.expert_map[i] : -1;
      const uint32_t word = __ballot_sync(
          kAllLanes, static_cast<unsigned>(there) < static_cast<unsigned>(e));  // not -1
      if (i % 32 == 0) words[i / 32] = word;
      if (there == e && e < a.num_local) found = i;
    }
    __syncthreads();
    id = found;
  }
  static __host__ __device__ int words_of(int num_experts) { return (num_experts + 31) / 32; }
  template <bool kMapped>
  __device__ bool holds(int32_t other) const {
    if (!kMapped) return static_cast<unsigned>(other) < static_cast<unsigned>(local);
    const bool valid = static_cast<unsigned>(other) < static_cast<unsigned>(num_experts);
    return valid && (bits[other / 32] >> (other % 32) & 1u) != 0;
  }
};

// `splits`: 2 if two blocks number the slots of an expert, each half of every warp's.
template <bool kMapped>
__global__ void __launch_bounds__(kMostRowThreads) plan_rows(const RowArgs a, const int splits) {
  pdl_wait();
  pdl_launch_dependents();
  settle_missing_of_warp(a);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t step = int64_t{blockDim.x} * kLaneSlots;
  const int64_t run = (a.slots + step - 1) / step * kWarpSlots;
  const int64_t begin = threadIdx.x / 32 * run, end = min(a.slots, begin + run);
  const int64_t middle =
      splits == 1 ? end : min(end, begin + (run / kWarpSlots + 1) / 2 * kWarpSlots);
  const int split = static_cast<int>(blockIdx.x) % splits;
  // A rank without experts runs one iteration, too, for the offset of no expert.
  for (int e = static_cast<int>(blockIdx.x) / splits; e < max(a.num_local, 1);
       e += static_cast<int>(gridDim.x) / splits) {
    const EarlierExperts earlier(a, e);
    const int32_t id = earlier.id;
    int32_t before = 0, own = 0, own_early = 0;  // early: before `middle`
#pragma unroll 2
    for (int64_t slot = begin + lane * kLaneSlots; slot < end; slot += kWarpSlots) {
      const SlotIds four(a, slot);
      int32_t here = 0;
#pragma unroll
      for (const int32_t other : four.id) {
        before += earlier.holds<kMapped>(other);
        here += other == id;
      }
      own += here;
      if (slot < middle) own_early += here;
    }
    if (id < 0) own = own_early = 0;  // ids of -1 are of no expert
    const int32_t first = block_sum(before);
    const Rank rank = block_scan(own);
    if (threadIdx.x == 0 && split == 0) {
      a.plan.expert_offsets[e] = first;
      if (e >= a.num_local - 1) a.plan.expert_offsets[a.num_local] = first + rank.total;
    }
    const int32_t numbered = split == 0 ? own_early : own - own_early;
    if (__ballot_sync(kAllLanes, numbered != 0) == 0) continue;
    int32_t row = first + __shfl_sync(kAllLanes, rank.before, 0);
    if (split == 1) {
      int32_t of_warp = own_early;
      for (int lanes = 16; lanes > 0; lanes /= 2)
        of_warp += __shfl_xor_sync(kAllLanes, of_warp, lanes);
      row += of_warp;
    }
    const int64_t last = split == 0 ? middle : end;
#pragma unroll 2
    for (int64_t slot = split == 0 ? begin : middle; slot < last; slot += kWarpSlots) {
      const int64_t mine = slot + lane * kLaneSlots;
      const SlotIds four(a, mine);
      int at = row;
#pragma unroll
      for (const int32_t other : four.id) {
        const unsigned found = __ballot_sync(kAllLanes, other == id);
        at += __popc(found & ((1u << lane) - 1));
        row += __popc(found);
      }
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        if (four.id[j] != id) continue;
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
  const int64_t experts = std::max<int64_t>(num_local, 1);
  const bool many = args.slots > 4096;
  const int threads = many ? cuda::kMostRowThreads : cuda::kRowThreads;
  // Two blocks for each expert where all of them run at once.
  const int splits = many && 2 * experts <= queue_.num_sms ? 2 : 1;
  if (expert_map == nullptr)
    return cuda::launch_early(queue_, stream, "plan_rows", cuda::plan_rows<false>, experts * splits,
                              threads, 0, args, splits);
  const size_t bits = cuda::EarlierExperts::words_of(args.num_experts) * sizeof(uint32_t);
  return cuda::launch_early(queue_, stream, "plan_rows", cuda::plan_rows<true>, experts * splits,
                            threads, bits, args, splits);
}

Status CudaOps::plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                  const RowPlan& plan, Stream stream) {
  return cuda::launch(queue_, stream, "plan_batched_rows", cuda::plan_batched_rows, num_experts,
                      cuda::kRowThreads, 0, counts, num_experts, max_tokens, plan,
                      device_errors_.cell(DeviceErrorKind::kCounts));
}

}  // namespace moracle
