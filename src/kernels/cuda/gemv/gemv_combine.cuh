// Expert GEMV of GEMM 2 with the weighted sum over a token's experts. A unit is a panel of outputs.
// The warps of a CTA split K over all experts that any token chose. Each output is added by one CTA
// or cluster, so no kernel has to follow.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemv/slot_plan.cuh"
#include "kernels/cuda/gemv/split_k_sums.cuh"
#include "kernels/cuda/gemv/stage_sums.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/tiles/row_factors.cuh"

namespace moracle::cuda {

template <int kOctets>
struct CombineTables {
  int16_t slot[kMostAddedSlots][8 * kOctets];   ///< of an expert's tokens; -1: not chosen
  float2 factor[kMostAddedSlots][4 * kOctets];  ///< factors of the sums of two tokens
};
/// Sums of both CTAs of a cluster, for the panels that this CTA finishes.
template <int kOctets>
using ClusterSums = float[kMostClusterPanels / 2][2][8 * kOctets][16];

template <int kOctets>
struct alignas(16) CombineShared {
  union {
    SplitKSums<1, kOctets, kGemvWarps<kOctets>> partials;
    SlotPlanKeys keys;
  };
  SlotPlan plan;
  CombineTables<kOctets> tables;
  ClusterSums<kOctets> halves;
  RingBarriers<kGemvWarps<kOctets>> barriers;
};

/// Clears the tables for the largest number of chosen experts.
template <int kOctets>
__device__ void clear_tables(int num_slots, CombineTables<kOctets>& tables) {
  constexpr int kTokens = 8 * kOctets;
  for (int i = static_cast<int>(threadIdx.x); i < num_slots * kTokens; i += kGemvThreads<kOctets>) {
    (&tables.slot[0][0])[i] = -1;
    reinterpret_cast<float*>(tables.factor)[i] = 0;
  }
}

/// The position of a thread's slot in the tables. Group -1: no expert, or a later slot of the token
/// names the same expert.
struct SlotPosition {
  int group = -1, token = 0, slot = 0;
};

/// Enters slots and router weights. A token may name an expert twice: both slots have the same
/// values, so the last one counts for both. Needs cleared tables and a plan with one group for each
/// expert.
template <int kOctets>
__device__ SlotPosition enter_slots(const GemvSlots& slots, const SlotPlan& plan,
                                    CombineTables<kOctets>& tables) {
  SlotPosition at;
  const int position = static_cast<int>(threadIdx.x);
  if (position < slots.num_slots && plan.expert_at(position) >= 0) {
    at.slot = plan.order[position], at.token = at.slot / slots.top_k;
    const int group = plan.group[position], end = (at.token + 1) * slots.top_k;
    const bool last =
        position + 1 == slots.num_slots || plan.expert_at(position + 1) != plan.expert_at(position);
    if (last || plan.order[position + 1] >= end) {
      at.group = group;
      float factor = 0;
      for (int p = position; p >= plan.groups[group].first && plan.order[p] >= end - slots.top_k;
           --p)
        factor += slots.weights != nullptr ? slots.weights[plan.order[p]] : 1.0f;
      tables.slot[group][at.token] = static_cast<int16_t>(at.slot);
      reinterpret_cast<float*>(tables.factor[group])[at.token] = factor;
    }
  }
  __syncthreads();
  return at;
}

/// Multiplies a factor by the activation scale of its row.
template <class Operand, int kOctets>
__device__ void scale_factors(const GemvArgs& args, const SlotPosition& at,
                              CombineTables<kOctets>& tables) {
  if constexpr (Operand::kXScales == XScales::kToken) {
    if (at.group >= 0)
      reinterpret_cast<float*>(tables.factor[at.group])[at.token] *= args.matrix.x_scales[at.slot];
    __syncthreads();
  }
}

/// Returns Σ weight · bias over the slots of a token.
__device__ inline float combined_bias(const GemvArgs& args, const SlotPlan& plan, int token,
                                      int column) {
  const GemmArgs& a = args.matrix;
  const GemvSlots& slots = args.slots;
  float bias = 0;
  for (int s = token * slots.top_k; s < (token + 1) * slots.top_k; ++s) {
    const int expert = plan.expert[s];
    if (expert < 0) continue;
    const auto* const from =
        reinterpret_cast<const float*>(a.base + expert * a.expert_bytes + a.bias_at);
    bias += (slots.weights != nullptr ? slots.weights[s] : 1.0f) * from[column];
  }
  return bias;
}

/// A CTA's share of the panels. A warp takes every kWarps-th stage of all experts together. With
/// clusters it is a cluster's share: its two CTAs divide the stages, and finish panels alternately.
template <class Operand, int kOctets, int kClose>
class CombineGemv {
  static constexpr int kWarps = kGemvWarps<kOctets>;

 public:
  __device__ CombineGemv(const GemvArgs& args, CombineShared<kOctets>& shared, uint8_t* rings)
      : args_(args),
        a_(args.matrix),
        plan_(shared.plan),
        ring_(args, rings, shared.barriers, kWarps * args.cluster) {
    rank_ = args.cluster > 1 ? static_cast<int>(blockIdx.x) % args.cluster : 0;
    const int warps = kWarps * args.cluster,
              warp = rank_ * kWarps + static_cast<int>(threadIdx.x / 32);
    const UnitShare share(a_.panels, static_cast<int>(blockIdx.x) / args.cluster,
                          static_cast<int>(gridDim.x) / args.cluster);
    first_ = share.first, count_ = share.count;
    steps_ = (a_.blocks + kStageBlocks<Operand> - 1) / kStageBlocks<Operand>;
    own_ = max(plan_.num_groups * steps_ - warp + warps - 1, 0) / warps;
    apart_hits_ = warps / steps_, apart_steps_ = warps % steps_;
    begin_ = {warp / steps_, warp % steps_};
    filled_ = begin_, fill_left_ = own_, units_left_ = own_ > 0 ? count_ : 0, panel_ = first_;
  }

  /// Issues the first loads of weights, which need no activations.
  __device__ void start() {
    if (units_left_ > 0) enter_ring();
#pragma unroll 1
    for (int i = 1; i < args_.stages; ++i) fill();
  }

  __device__ void run(const CombineTables<kOctets>& tables,
                      SplitKSums<1, kOctets, kWarps>& partials, ClusterSums<kOctets>& halves) {
    const int full = a_.x_bytes / (kStageBlocks<Operand> * mma16::kCols * Operand::kXBytes);
    const int quad = static_cast<int>(threadIdx.x % 4);
    StageRows<Operand, kOctets> x;
    const auto enter_x = [&](int hit) {
      x.enter(a_, [&](int r) { return max(tables.slot[hit][r], 0); });
    };
    if (own_ > 0) {
      enter_x(begin_.hit);
      x.go(begin_.step);
#pragma unroll
      for (int b = 0; b < x.kBlocks; ++b) x.load(a_, b);
    }
    StageSums<Operand, 1, kOctets, kClose> sums;
    for (int u = 0; u < count_; ++u) {
      sums.clear();
      HitStage at = begin_;
      for (int left = own_; left > 0; --left) {
        const uint8_t* const stage = ring_.next();
        fill();
        if (at.step >= full) x.reload(a_);
        const HitStage next = left == 1 ? begin_ : after(at);
        if constexpr (kHasRowFactors<Operand>)
          sums.factors[0] =
              two_row_factors(a_, plan_.groups[at.hit].expert,
                              (first_ + u) * 16 + static_cast<int>(threadIdx.x % 32) / 4 * 2);
        if (next.hit != at.hit) enter_x(next.hit);
        x.go(next.step);
        float2 factors[kOctets];
        bool chosen[kOctets][2];
#pragma unroll
        for (int o = 0; o < kOctets; ++o) {
          factors[o] = tables.factor[at.hit][o * 4 + quad];
          const short2 slots = reinterpret_cast<const short2*>(tables.slot[at.hit])[o * 4 + quad];
          chosen[o][0] = slots.x >= 0, chosen[o][1] = slots.y >= 0;
        }
        sums.add(
            args_, stage, at.step, x, true,
            [&](float& total, float sum, float scale, int o, int i) {
              // Only tokens that chose the expert have valid sums.
              if (chosen[o][i]) total += sum * (scale * (i == 0 ? factors[o].x : factors[o].y));
            },
            [&](int b) { x.load(a_, b); });
        at = next;
      }
      partials.put(sums.total);
      const int token = partials.row(0);
      if (token < args_.slots.num_tokens) {
        float sum[1];
        partials.get(0, sum);
        if (args_.cluster > 1)
          store_cluster(shared_address(&halves[u / 2][rank_][token][partials.output()]),
                        static_cast<uint32_t>(u % 2), sum[0]);
        else
          finish(u, token, sum[0]);
      }
      partials.wait();
    }
    if (args_.cluster == 1) return;
    cluster_arrive();
    cluster_wait();
    const int token = partials.row(0);
    if (token >= args_.slots.num_tokens) return;
    for (int u = rank_; u < count_; u += 2) {
      const int output = partials.output();
      finish(u, token, halves[u / 2][0][token][output] + halves[u / 2][1][token][output]);
    }
  }

 private:
  /// A stage of one of the chosen experts: `hit` is the expert's number among them.
  struct HitStage {
    int hit, step;
  };
  __device__ void finish(int u, int token, float sum) {
    const int column = (first_ + u) * 16 + SplitKSums<1, kOctets, kWarps>::output();
    if (column >= a_.columns) return;
    if (a_.has_bias) sum += combined_bias(args_, plan_, token, column);
    store(a_.y, token, column, sum);
  }
  __device__ HitStage after(const HitStage& at) const {
    const int step = at.step + apart_steps_;
    const bool over = step >= steps_;
    return {at.hit + apart_hits_ + (over ? 1 : 0), over ? step - steps_ : step};
  }
  __device__ void enter_ring() {
    ring_.enter(a_.base + plan_.groups[filled_.hit].expert * a_.expert_bytes, {panel_},
                filled_.step);
  }
  __device__ void fill() {
    const bool there = units_left_ > 0;
    ring_.fill(there, true);
    if (!there) return;
    if (--fill_left_ == 0) {
      fill_left_ = own_, filled_ = begin_, ++panel_;
      if (--units_left_ > 0) enter_ring();
      return;
    }
    const int before = filled_.hit;
    filled_ = after(filled_);
    if (filled_.hit != before) enter_ring();
  }

  const GemvArgs& args_;
  const GemmArgs& a_;
  const SlotPlan& plan_;
  WeightRing<Operand, 1> ring_;
  int rank_, first_, count_, steps_, own_, apart_hits_, apart_steps_;
  HitStage begin_, filled_;
  int fill_left_, units_left_, panel_;
};

template <class Operand, int kOctets, int kClose>
__global__ void __launch_bounds__(kGemvThreads<kOctets>, 1)
    gemv_combine(const __grid_constant__ GemvArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<CombineShared<kOctets>*>(memory);
  // The other CTA of a cluster must run before this one stores to its memory.
  if (args.cluster > 1) cluster_arrive_relaxed();
  clear_tables(args.slots.num_slots, shared.tables);
  // Weights and ids are complete: GEMM 1 lets later kernels start only after its own wait.
  make_slot_plan(args.slots, false, kMostGemvSlots, shared.plan, shared.keys);
  CombineGemv<Operand, kOctets, kClose> tokens(args, shared, memory + sizeof(shared));
  tokens.start();
  const SlotPosition position = enter_slots(args.slots, shared.plan, shared.tables);
  if (args.cluster > 1) cluster_wait();
  pdl_wait();
  pdl_launch_dependents();
  scale_factors<Operand>(args, position, shared.tables);
  tokens.run(shared.tables, shared.partials, shared.halves);
#endif
}

}  // namespace moracle::cuda
