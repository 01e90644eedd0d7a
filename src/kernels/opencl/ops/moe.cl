// Operations around the experts' GEMMs, element by element.
#include "elements.cl"

kernel void convert_elements(MATRIX(from), MATRIX(to), const long rows, const long from_cols, const long to_cols) {
  FOR_EACH_ELEMENT(r, c, rows, to_cols) STORE(to, r, c, c < from_cols ? LOAD(from, r, c) : 0.0f);
}

kernel void scale_rows(MATRIX(from), global const float *weights, MATRIX(to), const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) STORE(to, r, c, LOAD(from, r, c) * weights[r]);
}

// The slot of token t whose row comes next after `row`, or -1.
long next_slot(global const int *slot_row, long t, long top_k, int row) {
  long next = -1;
  for (long j = t * top_k; j < (t + 1) * top_k; ++j) {
    if (slot_row[j] > row && (next < 0 || slot_row[j] < slot_row[next])) next = j;
  }
  return next;
}

// Adds the rows of a token in f32, in the order of their experts, which is also the order of rows.
kernel void combine(MATRIX(y), global const int *slot_row, global const float *weights, const long top_k, MATRIX(out),
                    const long rows, const long cols) {
  FOR_EACH_ELEMENT(t, c, rows, cols) {
    float sum = 0;
    for (long j = next_slot(slot_row, t, top_k, -1); j >= 0; j = next_slot(slot_row, t, top_k, slot_row[j]))
      sum += (weights ? weights[j] : 1.0f) * LOAD(y, slot_row[j], c);
    STORE(out, t, c, sum);
  }
}
