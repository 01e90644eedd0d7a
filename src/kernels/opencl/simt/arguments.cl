// Arguments of the kernels on layout vnni16, and the rows of activations of a work-group.
#include "activation.cl"
#include "experts.cl"
#include "simt/codes.cl"

// As Epilogue in simt_linear.cc: applied between the sums and y.
typedef struct {
  int function;              // of activation.cl; -1: none
  float alpha, beta, limit;
  long gates;                // panels of gates, followed by as many panels that they multiply; 0: no gates
  long cols;                 // of y
} Epilogue;

// y[r, n] = sum over k of x[row_index[r], k] * w[e(r), n, k] + bias[e(r), n], then the activation function. A row tile
// is a unit of work. With by_row each row has a row tile, and only those of rows 0, ROWS, 2 * ROWS, ... of an expert work.
// Otherwise an expert has `strips` row tiles, which step over its rows.
#define SIMT_ARGUMENTS                                                                                           \
  global const uchar *weights, const Shape s, MATRIX(x), global const float *x_scales, const long x_num_scales, \
      global const int *row_index, global const int *offsets, MATRIX(y), const Epilogue epilogue,               \
      const long num_rows, const int aligned, const int by_row, const long strips

// Rows of one expert: first, first + step, ... below `past`. The expert's rows end at `end`.
typedef struct {
  long expert, first, step, past, end;
} Rows;

Rows rows_of(global const int *offsets, long num_experts, long num_rows, long row_tile, int by_row, long strips,
             long at_once) {
  const long e = !offsets ? 0 : by_row ? expert_of(offsets, num_experts, row_tile) : row_tile / strips;
  if (e == num_experts) return (Rows){0, 0, 1, 0, 0};
  const long begin = offsets ? offsets[e] : 0, end = offsets ? min((long)offsets[e + 1], num_rows) : num_rows;
  if (!by_row) return (Rows){e, begin + row_tile % strips * at_once, strips * at_once, end, end};
  const int works = (row_tile - begin) % at_once == 0 && row_tile < end;
  return (Rows){e, row_tile, at_once, works ? row_tile + 1 : row_tile, end};
}

#define NUM_ROW_TILES (by_row ? num_rows : s.num_experts * strips)

// The index of panel p, 0 <= p < count, of the `count` panels of a work-group. With gates, the first half are gates and
// the other half the panels that they multiply.
long panel_of(const Epilogue *epilogue, long group, int p, int count) {
  if (epilogue->gates == 0) return group * count + p;
  const int gates = count / 2;
  return p < gates ? group * gates + p : epilogue->gates + group * gates + p - gates;
}

// Work-groups that share the panels of an expert.
long panel_groups(const Shape *s, const Epilogue *epilogue, int count) {
  const long panels = epilogue->gates == 0 ? s->panels : epilogue->gates;
  const int each = epilogue->gates == 0 ? count : count / 2;
  return (panels + each - 1) / each;
}

// Columns of the result; y may be wider.
#define RESULT_COLS (epilogue.gates == 0 ? s.n : epilogue.gates * 16)

float result_of(const Epilogue *epilogue, float gate, float value) {
  if (epilogue->function < 0) return value;
  return activated(epilogue->function, epilogue->alpha, epilogue->beta, epilogue->limit, gate, value);
}
