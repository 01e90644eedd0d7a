// Expert GEMV for few rows of each expert: GEMM 1 with the activation, or GEMM 2 before `combine`.
// A unit is two panels of an expert (gates and the outputs that they multiply, or neighbours) for
// the rows of a group. A team of four warps splits K of a unit. Weights stream from one unit to the
// next without a gap. CTAs have equal numbers of units, which their teams take round-robin.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemv/slot_plan.cuh"
#include "kernels/cuda/gemv/split_k_sums.cuh"
#include "kernels/cuda/gemv/stage_sums.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/row_factors.cuh"

namespace moracle::cuda {

inline constexpr int kExpertsTeam = 4;
template <int kOctets>
inline constexpr int kExpertsTeams = kGemvWarps<kOctets> / kExpertsTeam;

template <int kOctets>
struct alignas(16) ExpertsShared {
  union {
    SplitKSums<2, kOctets, kExpertsTeam> of_team[kExpertsTeams<kOctets>];
    SlotPlanKeys keys;
  };
  SlotPlan plan;
  RingBarriers<kGemvWarps<kOctets>> barriers;
};

/// A unit of a team: panels number `pair` of a group.
struct GroupUnit {
  int group, pair;
  __device__ void advance(int teams, int pairs) {
    for (pair += teams; pair >= pairs; pair -= pairs) ++group;
  }
};

/// The epilogue of one output of both panels of a pair and one slot, whose row of x is `source`.
template <class Operand>
__device__ void finish_row(const GemmArgs& a, int expert, int pair, int output, int slot,
                           int source, float (&sum)[2]) {
  const int columns[2] = {(a.gated ? pair : 2 * pair) * 16 + output,
                          (a.gated ? pair + a.panels / 2 : 2 * pair + 1) * 16 + output};
  if constexpr (Operand::kXScales == XScales::kToken) {
    const float scale = a.x_scales[source];
    sum[0] *= scale, sum[1] *= scale;
  }
  if constexpr (kHasRowFactors<Operand>) {
    const float* const factors = row_factors(a, expert);
    sum[0] *= factors[columns[0]];
    if (columns[1] < a.panels * 16) sum[1] *= factors[columns[1]];
  }
  if (a.has_bias) {
    const auto* const bias =
        reinterpret_cast<const float*>(a.base + expert * a.expert_bytes + a.bias_at);
    sum[0] += bias[columns[0]];
    if (columns[1] < a.panels * 16) sum[1] += bias[columns[1]];
  }
  if (a.gated) {
    if (columns[0] < a.columns) store(a.y, slot, columns[0], activated(a, sum[0], sum[1]));
  } else {
    if (columns[0] < a.columns) store(a.y, slot, columns[0], sum[0]);
    if (columns[1] < a.columns) store(a.y, slot, columns[1], sum[1]);
  }
}

/// The epilogue for row r of a unit's group.
template <class Operand>
__device__ void finish_group_row(const GemvArgs& args, const SlotPlan& plan, const GroupUnit& unit,
                                 int output, int r, float (&sum)[2]) {
  const SlotGroup group = plan.groups[unit.group];
  if (r >= group.rows) return;
  const int position = group.first + r;
  finish_row<Operand>(args.matrix, group.expert, unit.pair, output, plan.order[position],
                      plan.source[position], sum);
}

/// Runs a CTA's share. `rings`: of all warps. Calls await() when the first
/// weights are in flight, before it reads x, in all threads.
template <class Operand, int kOctets, int kClose, class Await>
__device__ void run_gemv_experts(const GemvArgs& args, ExpertsShared<kOctets>& shared,
                                 uint8_t* rings, const RowsOfX& of_x, Await await) {
  constexpr int kTeams = kExpertsTeams<kOctets>;
  const SlotPlan& plan = shared.plan;
  const GemmArgs& a = args.matrix;
  const int warp = static_cast<int>(threadIdx.x / 32), team = warp / kExpertsTeam;
  const int pairs = a.gated ? a.panels / 2 : (a.panels + 1) / 2;
  const int units = plan.num_groups * pairs;
  const UnitShare share(units);
  const int first = share.first;
  const int count = max(0, (share.count - team + kTeams - 1) / kTeams);  // of the team
  const int steps = (a.blocks + kStageBlocks<Operand> - 1) / kStageBlocks<Operand>;
  const int begin = warp % kExpertsTeam,
            own = max(steps - begin + kExpertsTeam - 1, 0) / kExpertsTeam;
  const int full = a.x_bytes / (kStageBlocks<Operand> * mma16::kCols * Operand::kXBytes);

  GroupUnit unit{(first + team) / pairs, (first + team) % pairs};
  GroupUnit filled = unit, loaded = unit;  // the units being filled and loaded

  WeightRing<Operand, 2> ring(args, rings, shared.barriers, kExpertsTeam);
  const auto enter_ring = [&] {
    const uint8_t* const expert = a.base + plan.groups[filled.group].expert * a.expert_bytes;
    if (a.gated)
      ring.enter(expert, {filled.pair, filled.pair + pairs}, begin);
    else
      ring.enter(expert, {2 * filled.pair, min(2 * filled.pair + 1, a.panels - 1)}, begin);
  };
  int fill_left = own > 0 ? count : 0, fill_step = own;  // units and steps to fill
  if (fill_left > 0) enter_ring();
  const auto fill = [&] {
    const bool there = fill_left > 0;
    ring.fill(there, Operand::kGroups || fill_step == 1);
    if (!there || --fill_step > 0) return;
    fill_step = own;
    if (--fill_left == 0) return;
    filled.advance(kTeams, pairs);
    enter_ring();
  };
#pragma unroll 1
  for (int i = 1; i < args.stages; ++i) fill();
  await();
  if (count == 0) return;

  // x is loaded one stage ahead.
  StageRows<Operand, kOctets> x;
  const auto enter_x = [&] {
    const SlotGroup group = plan.groups[loaded.group];
    x.enter(a, of_x.first, of_x.stride,
            [&](int r) { return plan.source[group.first + min(r, group.rows - 1)]; });
  };
  enter_x();
  x.go(begin);
#pragma unroll
  for (int b = 0; b < x.kBlocks; ++b) x.load(a, b);

  StageSums<Operand, 2, kOctets, kClose> sums;
  for (int u = 0; u < count; ++u) {
    sums.clear();
    for (int left = own, step = begin; left > 0; --left, step += kExpertsTeam) {
      const uint8_t* const stage = ring.next();
      fill();
      if (step >= full) x.reload(a);
      if (left == 1 && u + 1 < count) {
        const int before = loaded.group;
        loaded.advance(kTeams, pairs);
        if (loaded.group != before) enter_x();
      }
      x.go(left == 1 ? begin : step + kExpertsTeam);
      sums.add(
          args, stage, step, x, left == 1,
          [](float& total, float sum, float scale, int, int) { total += sum * scale; },
          [&](int b) { x.load(a, b); });
    }
    auto& partials = shared.of_team[team];
    partials.put(sums.total);
#pragma unroll
    for (int i = 0; i < partials.kEach; ++i) {
      if (partials.row(i) >= partials.kRows) break;
      float sum[2];
      partials.get(i, sum);
      finish_group_row<Operand>(args, plan, unit, partials.output(), partials.row(i), sum);
    }
    partials.wait();
    unit.advance(kTeams, pairs);
  }
}

template <class Operand, int kOctets, int kClose>
__global__ void __launch_bounds__(kGemvThreads<kOctets>, 1)
    gemv_experts(const __grid_constant__ GemvArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<ExpertsShared<kOctets>*>(memory);
  const auto await = [] {
    pdl_wait();
    pdl_launch_dependents();
  };
  // Weights load while earlier kernels end, unless one of those may still write the ids.
  const bool awaits_ids = !args.ids_are_there;
  if (awaits_ids) await();
  make_slot_plan(args.slots, args.x_of_tokens, 8 * kOctets, shared.plan, shared.keys);
  run_gemv_experts<Operand, kOctets, kClose>(args, shared, memory + sizeof(shared),
                                             {args.matrix.x, args.matrix.x_stride}, [&] {
                                               if (!awaits_ids) await();
                                             });
  settle_slots(args.slots, shared.plan);
#endif
}

}  // namespace moracle::cuda
