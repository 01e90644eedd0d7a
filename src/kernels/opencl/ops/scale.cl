// Scales and copies of experts, capped and masked logits.
#include "elements.cl"

kernel void take_identity(global int *ids, global const float *weights, const long num_tokens,
                          const long top_k, const long num_experts, global float *sums) {
  FOR_EACH_ELEMENT(r, t, 1, num_tokens) {
    float sum = 0;
    for (long j = t * top_k; j < (t + 1) * top_k; ++j) {
      if (ids[j] < num_experts) continue;
      ids[j] = -1;
      sum += weights[j];
    }
    sums[t] = sum;
  }
}

kernel void scale_by_expert(global const int *ids, const long count, global const float *scales,
                            global float *weights) {
  FOR_EACH_ELEMENT(r, i, 1, count) {
    if (ids[i] >= 0) weights[i] *= scales[ids[i]];
  }
}

kernel void keep_own(global const int *ids, const long num_tokens, const long top_k,
                     global const int *copies, const long num_experts, global int *own) {
  FOR_EACH_ELEMENT(t, j, num_tokens, top_k) {
    const long i = t * top_k + j;
    const int id = ids[i];
    const bool is_here =
        id < 0 || copies[id] == 1 || (t + id) % copies[id] == copies[num_experts + id];
    own[i] = is_here ? id : -1;
  }
}

kernel void cap_elements(MATRIX(x), const float cap, const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) STORE(x, r, c, cap * tanh(LOAD(x, r, c) / cap));
}

kernel void keep_allowed(MATRIX(x), global const uint *allowed, const long row_words,
                         const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) {
    if ((allowed[r * row_words + c / 32] >> (c % 32) & 1) == 0) STORE(x, r, c, -INFINITY);
  }
}
