// Expert GEMV of one token, whose row of x serves all slots: GEMM 1 with the activation. A unit is
// two panels of an expert. All warps of a CTA share the stages of all its units round-robin, so
// their numbers of stages differ by at most one. The warps' partial sums are added once, at the
// end.
#pragma once

#include "kernels/cuda/gemv/gemv_experts.cuh"
#include "kernels/cuda/gemv/round_robin.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {

/// Sums of the two panels of a unit, by warp.
using TokenSums = float[kGemvWarps<1>][2][16];
static_assert(sizeof(TokenSums) == kTokenUnitBytes);

struct alignas(16) TokenShared {
  RingBarriers<kGemvWarps<1>> barriers;
};

/// The slots with an expert. A lane holds one of them. Each warp finds them by itself, which takes
/// no barrier.
struct TokenSlots {
  int own;                   ///< expert of this lane's slot; -1: none
  int count;                 ///< of those with an expert
  uint32_t expert_and_slot;  ///< expert << 16 | slot, of the lane's position among those

  __device__ explicit TokenSlots(const GemvSlots& s) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    own = lane < s.num_slots ? expert_of_slot(s, lane) : -1;
    const unsigned there = __ballot_sync(kAllLanes, own >= 0);
    count = __popc(there);
    const int before = own >= 0 ? __popc(there & ((1u << lane) - 1)) : -1;
    expert_and_slot = 0;
    for (int slot = 0; slot < s.num_slots; ++slot) {
      const int expert = __shfl_sync(kAllLanes, own, slot);
      if (__shfl_sync(kAllLanes, before, slot) == lane)
        expert_and_slot = static_cast<uint32_t>(expert) << 16 | static_cast<uint32_t>(slot);
    }
  }
  /// Returns `expert_and_slot` of lane `number`: the number-th slot with an expert. All lanes call.
  __device__ uint32_t at(int number) const {
    return __shfl_sync(kAllLanes, expert_and_slot, number);
  }
};

template <class Operand, int kClose>
__global__ void __launch_bounds__(kGemvThreads<1>, 1)
    gemv_token(const __grid_constant__ GemvArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kWarps = kGemvWarps<1>;
  auto& shared = *reinterpret_cast<TokenShared*>(memory);
  uint8_t* const rings = memory + sizeof(shared);
  auto* const of_units = reinterpret_cast<TokenSums*>(ring_of_warp(args, rings, kWarps));
  const GemmArgs& a = args.matrix;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int pairs = a.gated ? a.panels / 2 : (a.panels + 1) / 2;
  const int steps = (a.blocks + kStageBlocks<Operand> - 1) / kStageBlocks<Operand>;
  WeightRing<Operand, 2> ring(args, rings, shared.barriers, kWarps);
  if (!args.ids_are_there) {
    pdl_wait();
    pdl_launch_dependents();
  }

  const TokenSlots slots(args.slots);
  const UnitShare share(slots.count * pairs);
  const GroupUnit begin{share.first / pairs, share.first % pairs};
  const RoundRobin<kWarps> schedule(steps);
  const UnitStage first = schedule.first(warp);
  const int own = schedule.count(warp, share.count);

  UnitStage filled = first;
  GroupUnit fills = begin;
  fills.advance(first.unit, pairs);
  const auto enter_ring = [&] {
    const uint8_t* const expert =
        a.base + static_cast<int>(slots.at(fills.group) >> 16) * a.expert_bytes;
    if (a.gated)
      ring.enter(expert, {fills.pair, fills.pair + pairs}, filled.step);
    else
      ring.enter(expert, {2 * fills.pair, min(2 * fills.pair + 1, a.panels - 1)}, filled.step);
  };
  int fill_left = own;
  if (fill_left > 0) enter_ring();
  const auto fill = [&] {
    const bool there = fill_left > 0;
    const UnitStage next = schedule.after(filled);
    ring.fill(there, Operand::kGroups || fill_left == 1 || next.unit != filled.unit);
    if (!there) return;
    if (--fill_left == 0) return;
    const int units = next.unit - filled.unit;
    filled = next;
    if (units == 0) return;
    fills.advance(units, pairs);
    enter_ring();
  };
#pragma unroll 1
  for (int i = 1; i < args.stages; ++i) fill();
  if (args.ids_are_there) {
    pdl_wait();
    pdl_launch_dependents();
  }

  if (own > 0) {
    const int full = a.x_bytes / (kStageBlocks<Operand> * mma16::kCols * Operand::kXBytes);
    StageRows<Operand, 1> x;
    x.enter(a, [](int) { return 0; });
    x.go(first.step);
#pragma unroll
    for (int b = 0; b < x.kBlocks; ++b) x.load(a, b);
    StageSums<Operand, 2, 1, kClose> sums;
    UnitStage at = first;
    for (int left = own; left > 0; --left) {
      const uint8_t* const stage = ring.next();
      fill();
      if (at.step >= full) x.reload(a);
      const UnitStage next = left == 1 ? at : schedule.after(at);
      const bool ends = left == 1 || next.unit != at.unit;
      x.go(next.step);
      sums.add(
          args, stage, at.step, x, ends,
          [](float& total, float sum, float scale, int, int) { total += sum * scale; },
          [&](int b) { x.load(a, b); });
      if (ends) {
        // Lanes that hold the first row.
        if (lane % 4 == 0) {
#pragma unroll
          for (int p = 0; p < 2; ++p)
            *reinterpret_cast<float2*>(&of_units[at.unit][warp][p][lane / 2]) = {
                sums.total[p][0][0], sums.total[p][0][2]};
        }
        sums.clear();
      }
      at = next;
    }
  }
  __syncthreads();

  const int outputs = share.count * 16;
  for (int i = static_cast<int>(threadIdx.x); i - lane < outputs; i += kGemvThreads<1>) {
    const int number = i / 16, output = i % 16;
    GroupUnit unit = begin;
    unit.advance(number, pairs);
    const uint32_t slot = slots.at(unit.group);
    if (i >= outputs) continue;
    float sum[2] = {};
    for (int step = 0; step < schedule.sharers(); ++step) {
      const auto& of_warp = of_units[number][schedule.warp_of(number, step)];
      sum[0] += of_warp[0][output], sum[1] += of_warp[1][output];
    }
    finish_row<Operand>(a, static_cast<int>(slot >> 16), unit.pair, output,
                        static_cast<int>(slot & 0xffffu), 0, sum);
  }
  if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < args.slots.num_slots)
    settle_slot(args.slots, static_cast<int>(threadIdx.x), slots.own);
#endif
}

}  // namespace moracle::cuda
