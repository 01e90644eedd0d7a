// Router logits to experts and their weights: score, choose, weigh.
//
//   softmax               exp(l - max) / Σ over all experts
//   sigmoid               1 / (1 + exp(-l))
//   square root of softplus  √log(1 + exp(l)); above 20 the logarithm is l itself, as in torch
//   softmax after top-k   exp(l - max) / Σ over the chosen: the largest logit is always chosen, so
//                         the maximum and the order are those of all experts
//   sparse mixer          for each choice among the experts left: exp(l - max) / Σ over the near
//                         ones (see Routing::jitter); Liu et al., "GRIN: GRadient-INformed MoE",
//                         2024
//
// A correction bias affects the choice only. With groups, a group's rank is the sum of its two
// best biased scores (DeepSeek-V3), or its best score if there is no bias (DeepSeek-V2).
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

// Marks an expert that is no longer a candidate; scores are never negative.
constexpr float kOut = -1.0f;

struct Scores {
  float* scores;
  int64_t num_experts;
  float divisor;      // turns a score into a share
  const float* bias;  // null: none

  bool in_race(int64_t e) const { return scores[e] != kOut; }
  float rank(int64_t e) const {
    return bias == nullptr ? scores[e] : scores[e] / divisor + bias[e];
  }
};

// The best candidate of [first, last); the lower id of equals; -1: none is left.
int64_t best_of(const Scores& s, int64_t first, int64_t last) {
  int64_t best = -1;
  for (int64_t e = first; e < last; ++e) {
    if (s.in_race(e) && (best < 0 || s.rank(e) > s.rank(best))) best = e;
  }
  return best;
}

// The same over all experts, for the case that scores alone decide. NaN must occur in all scores or
// in none.
int64_t best_score(const cpu::VectorOps& vector, const Scores& s) {
  const float largest = vector.largest(s.scores, s.num_experts);
  const int64_t best = std::find(s.scores, s.scores + s.num_experts, largest) - s.scores;
  return best < s.num_experts ? best : best_of(s, 0, s.num_experts);
}

float group_rank(const Scores& s, int64_t first, int64_t last) {
  const int64_t best = best_of(s, first, last);
  if (s.bias == nullptr) return s.rank(best);
  float second = 0;
  bool any = false;
  for (int64_t e = first; e < last; ++e) {
    if (e == best || (any && s.rank(e) <= second)) continue;
    second = s.rank(e);
    any = true;
  }
  return s.rank(best) + second;
}

// Removes the worst groups, the higher id of equals first, until `keep` are left. A group is
// removed when its first expert is.
void drop_groups(const Scores& s, int64_t num_groups, int64_t keep) {
  const int64_t size = s.num_experts / num_groups;
  for (int64_t left = num_groups; left > keep; --left) {
    int64_t worst = -1;
    float worst_rank = 0;
    for (int64_t g = num_groups - 1; g >= 0; --g) {
      if (!s.in_race(g * size)) continue;
      const float rank = group_rank(s, g * size, (g + 1) * size);
      if (worst < 0 || rank < worst_rank) {
        worst = g;
        worst_rank = rank;
      }
    }
    std::fill(s.scores + worst * size, s.scores + (worst + 1) * size, kOut);
  }
}

float sqrt_softplus(float logit) {
  return std::sqrt(logit > 20 ? logit : std::log1p(std::exp(logit)));
}

// Turns logits into scores; returns the divisor of the weights.
float score(Score kind, float* logits, int64_t count) {
  if (kind == Score::kSigmoid) {
    for (int64_t e = 0; e < count; ++e) logits[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return 1;
  }
  if (kind == Score::kSqrtSoftplus) {
    for (int64_t e = 0; e < count; ++e) logits[e] = sqrt_softplus(logits[e]);
    return 1;
  }
  const float largest = *std::max_element(logits, logits + count);
  float sum = 0;
  for (int64_t e = 0; e < count; ++e) sum += logits[e] = std::exp(logits[e] - largest);
  return kind == Score::kSoftmax ? sum : 1;
}

void route_token(const cpu::VectorOps& vector, const Routing& routing, const float* bias,
                 float* logits, int64_t num_experts, int64_t top_k, int32_t* ids, float* weights) {
  const float divisor = score(routing.score, logits, num_experts);
  const Scores scores{logits, num_experts, divisor, bias};
  if (routing.num_groups > routing.top_groups)
    drop_groups(scores, routing.num_groups, routing.top_groups);
  const bool of_one_logit =
      routing.score == Score::kSigmoid || routing.score == Score::kSqrtSoftplus;
  const bool by_score = bias == nullptr && !of_one_logit;
  float sum = 0;
  for (int64_t j = 0; j < top_k; ++j) {
    const int64_t best = by_score ? best_score(vector, scores) : best_of(scores, 0, num_experts);
    ids[j] = static_cast<int32_t>(best);
    weights[j] = logits[best] / divisor;
    sum += weights[j];
    logits[best] = kOut;
  }
  if (routing.renormalize || routing.score == Score::kTopkThenSoftmax) {
    // All scores of single logits may vanish. A token without weight then gets 0, not 0 / 0.
    const float whole = of_one_logit ? sum + 1e-20f : sum;
    for (int64_t j = 0; j < top_k; ++j) weights[j] /= whole;
  }
  for (int64_t j = 0; j < top_k; ++j) weights[j] *= routing.scaling_factor;
}

// The weights of the experts that a token's id chooses.
void weigh_token(const Routing& routing, float* logits, int64_t num_experts, int64_t top_k,
                 const int32_t* ids, float* weights) {
  const float divisor = score(routing.score, logits, num_experts);
  float sum = 0;
  for (int64_t j = 0; j < top_k; ++j) sum += weights[j] = logits[ids[j]] / divisor;
  const float whole = routing.renormalize ? sum + 1e-20f : 1;
  for (int64_t j = 0; j < top_k; ++j) weights[j] *= routing.scaling_factor / whole;
}

// Both choices of a token. Choices made before are excluded by a logit of -inf.
void mix_sparsely(const Routing& routing, float* logits, int64_t num_experts, int64_t top_k,
                  int32_t* ids, float* weights) {
  for (int64_t j = 0; j < top_k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < num_experts; ++e) {
      const bool left = std::find(ids, ids + j, e) == ids + j;
      if (left && (best < 0 || logits[e] > logits[best])) best = e;
    }
    const float most = logits[best];
    float sum = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      const bool far =
          (most - logits[e]) / std::max(std::abs(logits[e]), most) > 2 * routing.jitter;
      sum += far ? 0 : std::exp(logits[e] - most);
    }
    ids[j] = static_cast<int32_t>(best);
    weights[j] = routing.scaling_factor / sum;
    logits[best] = -INFINITY;
  }
}

}  // namespace

Status CpuOps::route(const Matrix& logits, const Routing& routing, const float* correction_bias,
                     int64_t top_k, int32_t* topk_ids, float* topk_weights, Stream) {
  MORACLE_CHECK(check_routing(routing, logits.cols, correction_bias != nullptr, top_k));
  if (routing.score == Score::kSparseMixer) {
    for (int64_t t = 0; t < logits.rows; ++t) {
      mix_sparsely(routing, f32_row(logits, t), logits.cols, top_k, topk_ids + t * top_k,
                   topk_weights + t * top_k);
    }
    return {};
  }
  // An expert's exponential and its share of the choices cost about as much as 16 products.
  split_rows(logits.rows, logits.cols * 16, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      route_token(vector_, routing, correction_bias, f32_row(logits, t), logits.cols, top_k,
                  topk_ids + t * top_k, topk_weights + t * top_k);
    }
  });
  return {};
}

Status CpuOps::route_by_token(const Matrix& logits, const Routing& routing,
                              const TokenRoutes& table, const int32_t* token_ids, int64_t top_k,
                              int32_t* topk_ids, float* topk_weights, Stream) {
  split_rows(logits.rows, logits.cols * 16, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      int32_t* const ids = topk_ids + t * top_k;
      std::copy_n(table.experts + token_ids[t] * top_k, top_k, ids);
      weigh_token(routing, f32_row(logits, t), logits.cols, top_k, ids, topk_weights + t * top_k);
    }
  });
  return {};
}

}  // namespace moracle
