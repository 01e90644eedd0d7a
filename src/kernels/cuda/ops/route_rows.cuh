// Turns the logits of one token into experts and their weights, in one warp: experts without
// groups, whose scores fit into registers.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "moracle/layer.h"

namespace moracle::cuda {

struct RouteArgs {
  Matrix logits;
  Routing routing;
  const float* bias;
  int64_t top_k;
  int32_t* ids;
  float* weights;
};

/// Experts per lane of the two variants of route_in_warp.
inline constexpr int kNarrowExpertsPerLane = 4, kMostExpertsPerLane = 16;
inline bool routes_in_warps(int64_t num_experts, const Routing& routing, int64_t top_k) {
  return num_experts <= 32 * kMostExpertsPerLane && top_k <= 32 &&
         routing.num_groups <= routing.top_groups && routing.score != Score::kSparseMixer;
}

/// √log(1 + exp(logit)); above 20 the logarithm is the logit itself, as in torch.
__device__ inline float sqrt_softplus(float logit) {
  return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
}

/// Returns the final weight of one pick. `sum` is the sum of the picked scores of the token.
__device__ inline float settled(const Routing& routing, float weight, float sum) {
  // All scores of single logits may vanish. A token without weight then gets 0, not 0 / 0.
  const bool may_vanish = routing.score == Score::kSigmoid || routing.score == Score::kSqrtSoftplus;
  const float whole = may_vanish ? sum + 1e-20f : sum;
  const bool divides = routing.renormalize || routing.score == Score::kTopkThenSoftmax;
  return (divides ? weight / whole : weight) * routing.scaling_factor;
}

/// Ranks as integers of the same order. A NaN is the least of all, and -0 is 0.
__device__ inline uint32_t order_of(float rank) {
  if (isnan(rank)) return 0;
  const uint32_t bits = __float_as_uint(rank + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// Loads a lane's logits, all before the first is used. Those of no expert are -infinity.
template <int kEach>
__device__ void load_logits(const RouteArgs& a, int64_t t, float (&logits)[kEach]) {
  const int lane = threadIdx.x % 32;
  const auto num_experts = static_cast<int>(a.logits.cols);
  uint32_t bits[kEach] = {};
  const bool wide = a.logits.dtype == DType::kF32;
  if (wide) {
    const auto* const row = static_cast<const uint32_t*>(a.logits.data) + t * a.logits.stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i < num_experts) bits[i] = row[lane + 32 * i];
  } else {
    const auto* const row = static_cast<const uint16_t*>(a.logits.data) + t * a.logits.stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i < num_experts) bits[i] = row[lane + 32 * i];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const auto half = static_cast<uint16_t>(bits[i]);
    const float value = wide                             ? __uint_as_float(bits[i])
                        : a.logits.dtype == DType::kBF16 ? bf16_to_float(half)
                                                         : f16_to_float(half);
    logits[i] = lane + 32 * i < num_experts ? value : __int_as_float(0xff800000);
  }
}

/// Routes token t. A lane holds at most kEach scores. Requires routes_in_warps.
template <int kEach>
__device__ void route_in_warp(const RouteArgs& a, int64_t t) {
  const int lane = threadIdx.x % 32;
  const auto num_experts = static_cast<int>(a.logits.cols);
  const Routing& routing = a.routing;
  // Scores and orders of this lane's experts. `left` marks the experts that may still be picked.
  float scores[kEach], largest = __int_as_float(0xff800000), divisor = 1;
  uint32_t orders[kEach];
  load_logits(a, t, scores);
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, scores[i]);
  if (routing.score == Score::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) scores[i] = 1.0f / (1.0f + expf(-scores[i]));
  } else if (routing.score == Score::kSqrtSoftplus) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) scores[i] = sqrt_softplus(scores[i]);
  } else {
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = expf(scores[i] - largest);
      sum += lane + 32 * i < num_experts ? scores[i] : 0.0f;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (routing.score == Score::kSoftmax) divisor = sum;
  }
  uint32_t left = 0;  // one bit for each of this lane's experts
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + 32 * i;
    orders[i] = 0;
    if (e >= num_experts) continue;
    left |= 1u << i;
    orders[i] = order_of(a.bias != nullptr ? scores[i] / divisor + a.bias[e] : scores[i]);
  }
  float own = 0, sum = 0;  // lane j holds choice j and its weight
  int own_id = 0;
  for (int j = 0; j < a.top_k; ++j) {
    uint32_t best = 0;
    int of_best = -1;  // the lowest index wins a tie
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      if ((left >> i & 1) != 0 && orders[i] >= best) best = orders[i], of_best = i;
    }
    const uint32_t most = warp_max(best);
    // The lowest id wins a tie: the one whose complement is largest.
    const bool has = of_best >= 0 && best == most;
    const auto id = static_cast<int>(~warp_max(has ? ~(lane + 32u * of_best) : 0u));
    float score = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) score = i == id / 32 ? scores[i] : score;
    const float weight = __shfl_sync(kAllLanes, score, id % 32) / divisor;
    sum += weight;
    if (lane == id % 32) left &= ~(1u << id / 32);
    if (lane == j) own = weight, own_id = id;
  }
  if (lane < a.top_k) {
    a.ids[t * a.top_k + lane] = own_id;
    a.weights[t * a.top_k + lane] = settled(routing, own, sum);
  }
}

}  // namespace moracle::cuda
