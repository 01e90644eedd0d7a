// Scales of experts and capped logits.
#include "elements.cl"

kernel void scale_by_expert(global const int *ids, const long count, global const float *scales,
                            global float *weights) {
  FOR_EACH_ELEMENT(r, i, 1, count) {
    if (ids[i] >= 0) weights[i] *= scales[ids[i]];
  }
}

kernel void cap_elements(MATRIX(x), const float cap, const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) STORE(x, r, c, cap * tanh(LOAD(x, r, c) / cap));
}
