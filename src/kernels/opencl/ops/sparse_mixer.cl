// Sparse mixer: both choices of a token, each with a softmax over the logits near its own. A work-item handles a
// token. The logits do not change.
#include "elements.cl"

kernel void mix_sparsely(MATRIX(logits), const float jitter, const float scaling_factor, global int *ids,
                         global float *weights, const long rows, const long num_experts) {
  FOR_EACH_ELEMENT(unused, t, 1, rows) {
    int first = -1;  // the previous choice
    for (int j = 0; j < 2; ++j) {
      float most = 0, sum = 0;
      int best = -1;  // the lower id of equals; a NaN is never better, but still an expert
      for (int e = 0; e < num_experts; ++e) {
        const float logit = LOAD(logits, t, e);
        if (e != first && (best < 0 || logit > most)) {
          most = logit;
          best = e;
        }
      }
      for (int e = 0; e < num_experts; ++e) {
        const float logit = LOAD(logits, t, e);
        const bool far = (most - logit) / fmax(fabs(logit), most) > 2 * jitter;
        if (e != first && !far) sum += exp(logit - most);
      }
      ids[2 * t + j] = best;
      weights[2 * t + j] = scaling_factor / sum;
      first = best;
    }
  }
}
