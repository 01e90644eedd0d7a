// GEMM 2 of few tokens with the weighted sum. A unit is a panel of outputs. The warps of a block
// share the columns of all experts that any token chose. So each output is added in one place,
// without a kernel after it.
#pragma once

#include "kernels/cuda/decode/few_partials.cuh"
#include "kernels/cuda/decode/few_plan.cuh"
#include "kernels/cuda/decode/few_sums.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/elements.cuh"

namespace moracle::cuda {

template <int kOctets>
struct FewTokensTables {
  int16_t slot[kMostAddedSlots][8 * kOctets];   ///< of an expert's tokens; -1: not chosen
  float2 factor[kMostAddedSlots][4 * kOctets];  ///< what the sums of two tokens are multiplied by
};
template <int kOctets>
struct alignas(16) FewTokensShared {
  FewPartials<1, kOctets, kFewWarps> partials;
  FewPlan plan;
  FewTokensTables<kOctets> tables;
};

/// Finds the slot of each expert and token.
template <int kOctets>
__device__ void find_few_slots(const FewSlots& slots, const FewPlan& plan,
                               FewTokensTables<kOctets>& tables) {
  constexpr int kTokens = 8 * kOctets;
  for (int i = static_cast<int>(threadIdx.x); i < plan.num_groups * kTokens; i += kFewThreads) {
    const FewGroup group = plan.groups[i / kTokens];
    int slot = -1;
    for (int r = 0; r < group.rows; ++r) {
      const int other = plan.order[group.first + r];
      if (other / slots.top_k == i % kTokens) slot = other;
    }
    tables.slot[i / kTokens][i % kTokens] = static_cast<int16_t>(slot);
  }
  __syncthreads();
}

/// Finds the factor of each expert and token: router weight times activation scale.
template <class Operand, int kOctets>
__device__ void find_few_factors(const FewArgs& args, const FewPlan& plan,
                                 FewTokensTables<kOctets>& tables) {
  constexpr int kTokens = 8 * kOctets;
  const FewSlots& slots = args.slots;
  for (int i = static_cast<int>(threadIdx.x); i < plan.num_groups * kTokens; i += kFewThreads) {
    const int slot = tables.slot[i / kTokens][i % kTokens];
    const FewGroup group = plan.groups[i / kTokens];
    float factor = 0;  // a token may name an expert twice: both slots have the same values
    for (int r = 0; slot >= 0 && r < group.rows; ++r) {
      const int other = plan.order[group.first + r];
      if (other / slots.top_k == i % kTokens)
        factor += slots.weights != nullptr ? slots.weights[other] : 1.0f;
    }
    if constexpr (Operand::kXScales == XScales::kToken) {
      if (slot >= 0) factor *= args.matrix.x_scales[slot];
    }
    reinterpret_cast<float*>(tables.factor)[i] = factor;
  }
  __syncthreads();
}

/// Returns Σ weight · bias over the slots of a token.
__device__ inline float few_bias(const FewArgs& args, const FewPlan& plan, int token, int column) {
  const MmaArgs& a = args.matrix;
  const FewSlots& slots = args.slots;
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

/// A block's share of the panels. A warp takes every kFewWarps-th stage of all experts together.
template <class Operand, int kOctets, int kStages, int kClose>
class FewTokens {
 public:
  __device__ FewTokens(const FewArgs& args, const FewPlan& plan, uint8_t* ring_memory)
      : args_(args), a_(args.matrix), plan_(plan), ring_(args, ring_memory) {
    const auto share = [&](int i) {
      return static_cast<int>(int64_t{a_.panels} * i / static_cast<int>(gridDim.x));
    };
    const int warp = static_cast<int>(threadIdx.x / 32);
    first_ = share(static_cast<int>(blockIdx.x));
    count_ = share(static_cast<int>(blockIdx.x) + 1) - first_;
    steps_ = (a_.blocks + kFewBlocks<Operand> - 1) / kFewBlocks<Operand>;
    own_ = max(plan.num_groups * steps_ - warp + kFewWarps - 1, 0) / kFewWarps;
    apart_hits_ = kFewWarps / steps_, apart_steps_ = kFewWarps % steps_;
    begin_ = {warp / steps_, warp % steps_};
    filled_ = begin_, fill_left_ = own_, units_left_ = own_ > 0 ? count_ : 0, panel_ = first_;
  }

  /// Starts to read weights. Needs no activations yet.
  __device__ void start() {
    if (units_left_ > 0) enter_ring();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fill();
  }

  __device__ void run(const FewTokensTables<kOctets>& tables,
                      FewPartials<1, kOctets, kFewWarps>& partials) {
    const int full = a_.x_bytes / (kFewBlocks<Operand> * mma16::kCols * Operand::kXBytes);
    const int quad = static_cast<int>(threadIdx.x % 4);
    FewX<Operand, kOctets> x;
    const auto enter_x = [&](int hit) {
      x.enter(a_, [&](int r) { return max(tables.slot[hit][r], 0); });
    };
    if (own_ > 0) {
      enter_x(begin_.hit);
      x.go(begin_.step);
#pragma unroll
      for (int b = 0; b < x.kBlocks; ++b) x.load(a_, b);
    }
    FewSums<Operand, 1, kOctets, kClose> sums;
    for (int u = 0; u < count_; ++u) {
      sums.clear();
      Place at = begin_;
      for (int left = own_; left > 0; --left) {
        const uint8_t* const stage = ring_.next();
        fill();
        if (at.step >= full) x.reload(a_);
        const Place next = left == 1 ? begin_ : after(at);
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
            args_, stage, at.step, x,
            [&](float& total, float sum, float scale, int o, int i) {
              // Only tokens that chose the expert have sums that mean something.
              if (chosen[o][i]) total += sum * (scale * (i == 0 ? factors[o].x : factors[o].y));
            },
            [&](int b) { x.load(a_, b); });
        at = next;
      }
      partials.put(sums.total);
      const int token = partials.row(0), column = (first_ + u) * 16 + partials.output();
      if (token < args_.slots.num_tokens && column < a_.columns) {
        float sum[1];
        partials.get(0, sum);
        if (a_.has_bias) sum[0] += few_bias(args_, plan_, token, column);
        store(a_.y, token, column, sum[0]);
      }
      partials.wait();
    }
  }

 private:
  /// A stage: of the expert that is number `hit` of those chosen.
  struct Place {
    int hit, step;
  };
  __device__ Place after(const Place& at) const {
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
    ring_.fill(there);
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

  const FewArgs& args_;
  const MmaArgs& a_;
  const FewPlan& plan_;
  FewRing<Operand, 1, kStages, kFewWarps> ring_;
  int first_, count_, steps_, own_, apart_hits_, apart_steps_;
  Place begin_, filled_;
  int fill_left_, units_left_, panel_;
};

template <class Operand, int kOctets, int kStages, int kClose>
__global__ void __launch_bounds__(kFewThreads, 1) few_tokens(const __grid_constant__ FewArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<FewTokensShared<kOctets>*>(memory);
  // Weights and ids are there: the kernel before this one lets it start only after its own wait.
  make_few_plan(args.slots, false, kMostFewSlots, shared.plan);
  find_few_slots(args.slots, shared.plan, shared.tables);
  FewTokens<Operand, kOctets, kStages, kClose> tokens(
      args, shared.plan,
      memory + sizeof(shared) + static_cast<int>(threadIdx.x / 32) * kStages * args.stage_bytes);
  tokens.start();
  await_earlier_kernels();
  start_later_kernels();
  find_few_factors<Operand>(args, shared.plan, shared.tables);
  tokens.run(shared.tables, shared.partials);
#endif
}

}  // namespace moracle::cuda
