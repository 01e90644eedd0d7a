// Turns router logits into experts and their weights, by the rules of kernels/cpu/ops/ops_route.cc. One work-group
// handles each token, with the scores in local memory. The logits do not change.
#include "elements.cl"

// The values of Score in moracle/layer.h.
#define SOFTMAX 0
#define SIGMOID 1
#define TOPK_THEN_SOFTMAX 2
#define SQRT_SOFTPLUS 5

// Marks an expert that is excluded. Scores are never negative.
#define OUT -1.0f
// Most work-items of a group: kThreads in ops_route.cc. Results of work-items are first merged to PARTIALS.
#define MOST_ITEMS 64
#define PARTIALS 8

float merge(float a, float b, bool adds) { return adds ? a + b : fmax(a, b); }

// The sum or the maximum of `value` over the work-items of the group, the same in each.
float merge_group(local float *scratch, float value, bool adds) {
  const int item = get_local_id(0), items = get_local_size(0);
  scratch[item] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < PARTIALS) {
    for (int i = item + PARTIALS; i < items; i += PARTIALS) value = merge(value, scratch[i], adds);
    scratch[item] = value;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float all = scratch[0];
  for (int i = 1; i < min(PARTIALS, items); ++i) all = merge(all, scratch[i], adds);
  barrier(CLK_LOCAL_MEM_FENCE);  // wait until all have read, so that the next call may write
  return all;
}

// Turns a token's logits into scores. Returns the divisor that turns a score into a share.
float score_token(MATRIX(logits), long t, int num_experts, int kind, local float *scores, local float *scratch) {
  const int item = get_local_id(0), items = get_local_size(0);
  float largest = -INFINITY, sum = 0;
  for (int e = item; e < num_experts; e += items) {
    scores[e] = LOAD(logits, t, e);
    largest = fmax(largest, scores[e]);
  }
  // Sigmoids need neither the maximum nor the sum. Compute them anyway: see drop_groups.
  largest = merge_group(scratch, largest, false);
  for (int e = item; e < num_experts; e += items) {
    const float logit = scores[e];
    if (kind == SIGMOID)
      scores[e] = 1.0f / (1.0f + exp(-logit));
    else if (kind == SQRT_SOFTPLUS)  // above 20 the logarithm is the logit itself, as in torch
      scores[e] = sqrt(logit > 20.0f ? logit : log1p(exp(logit)));
    else
      scores[e] = exp(logit - largest);
    sum += scores[e];
  }
  sum = merge_group(scratch, sum, true);
  return kind == SOFTMAX ? sum : 1;
}

// The rank by which experts are chosen. A bias changes the rank, but not the weight.
float rank_of(local const float *scores, int e, float divisor, global const float *bias) {
  return bias ? scores[e] / divisor + bias[e] : scores[e];
}

// Excludes all but the best `keep` groups of experts; the higher id loses a tie. A group's rank is its best score, or
// the sum of its two best scores if there is a bias. A NaN counts as infinite, so that it stays visible.
// Barriers stand outside of every `if`, even where all work-items agree: PoCL 3.1 miscompiles code after such a
// barrier.
void drop_groups(local float *scores, int num_experts, float divisor, global const float *bias, int num_groups,
                 int keep, local float *ranks) {
  const int item = get_local_id(0), items = get_local_size(0), size = num_experts / num_groups;
  const int groups = num_groups > keep ? num_groups : 0;
  for (int g = item; g < groups; g += items) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      float rank = rank_of(scores, e, divisor, bias);
      if (isnan(rank)) rank = INFINITY;
      second = fmax(second, fmin(best, rank));
      best = fmax(best, rank);
    }
    ranks[g] = bias && size > 1 ? best + second : best;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int g = item; g < groups; g += items) {
    int better = 0;
    for (int other = 0; other < groups; ++other)
      better += ranks[other] > ranks[g] || (ranks[other] == ranks[g] && other < g);
    if (better >= keep) {
      for (int e = g * size; e < (g + 1) * size; ++e) scores[e] = OUT;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}

// True if an expert is better than another one; an id of -1 is no expert. The lower id wins a tie. A NaN is never
// better, but still an expert.
bool is_better(float rank, int id, float than_rank, int than_id) {
  if (id < 0) return false;
  return than_id < 0 || rank > than_rank || (rank == than_rank && id < than_id);
}

// Finds the best of this work-item's experts.
void keep_best(local const float *scores, int num_experts, float divisor, global const float *bias,
               local float *best_rank, local int *best_id) {
  const int item = get_local_id(0), items = get_local_size(0);
  float best = 0;
  int id = -1;
  for (int e = item; e < num_experts; e += items) {
    if (scores[e] == OUT) continue;
    const float rank = rank_of(scores, e, divisor, bias);
    if (is_better(rank, e, best, id)) {
      best = rank;
      id = e;
    }
  }
  best_rank[item] = best;
  best_id[item] = id;
}

// Returns the index of the best among first, first + step, ... below `last`.
int best_of(local const float *rank, local const int *id, int first, int last, int step) {
  int best = first;
  for (int i = first + step; i < last; i += step)
    if (is_better(rank[i], id[i], rank[best], id[best])) best = i;
  return best;
}

// Local memory: `scores` [num_experts], `picked` [top_k], `ranks` [num_groups].
kernel void route(MATRIX(logits), const long tokens, const int num_experts, const int kind, const int renormalize,
                  const int num_groups, const int top_groups, const float scaling_factor, global const float *bias,
                  const int top_k, global int *ids, global float *weights, local float *scores, local float *picked,
                  local float *ranks) {
  // The best expert of each work-item, then of a PARTIALS'th of them.
  local float best_rank[MOST_ITEMS], partial_rank[PARTIALS];
  local int best_id[MOST_ITEMS], partial_id[PARTIALS];
  const int item = get_local_id(0), items = get_local_size(0), partials = min(PARTIALS, items);
  for (long t = get_group_id(0); t < tokens; t += get_num_groups(0)) {
    const float divisor = score_token(logits, logits_stride, logits_dtype, t, num_experts, kind, scores, best_rank);
    drop_groups(scores, num_experts, divisor, bias, num_groups, top_groups, ranks);
    keep_best(scores, num_experts, divisor, bias, best_rank, best_id);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = 0; j < top_k; ++j) {
      if (item < PARTIALS) {
        const int best = best_of(best_rank, best_id, item, items, PARTIALS);
        partial_rank[item] = best_rank[best];
        partial_id[item] = best_id[best];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      const int id = partial_id[best_of(partial_rank, partial_id, 0, partials, 1)];
      if (item == id % items) {
        ids[t * top_k + j] = id;
        picked[j] = scores[id] / divisor;
        scores[id] = OUT;
        keep_best(scores, num_experts, divisor, bias, best_rank, best_id);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    float sum = 0;
    if (item < top_k) {
      for (int j = 0; j < top_k; ++j) sum += picked[j];
    }
    // All sigmoids may vanish. A token without weight then gets 0, not 0 / 0.
    const float whole = kind == SIGMOID ? sum + 1e-20f : sum;
    const bool divides = renormalize || kind == TOPK_THEN_SOFTMAX;
    for (int j = item; j < top_k; j += items)
      weights[t * top_k + j] = (divides ? picked[j] / whole : picked[j]) * scaling_factor;
    barrier(CLK_LOCAL_MEM_FENCE);  // wait until the weights are read, because the next token overwrites them
  }
}
