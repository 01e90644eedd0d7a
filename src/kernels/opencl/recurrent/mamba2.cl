// Mamba-2, token by token (Dao and Gu, "Transformers are SSMs", 2024). A work-group keeps COLUMNS columns of a head's
// state in registers, a work-item every row of one column in its SLICE of rows. The state is read once and written
// once per step. A token's bits do not depend on the tokens per step.
//
// Compiled for each number of columns of b and c:
//   -D STATES=n, -D SLICES=n: work-items that share a column
#include "elements.cl"

#define COLUMNS 32
#define ROWS ((STATES + SLICES - 1) / SLICES)

// As Sizes in ops_mamba2.cc.
typedef struct {
  long num_heads, num_groups, head_dim, state;
  float least_step, most_step;
} Sizes;

kernel void mamba2(MATRIX(xbc), MATRIX(dt), global const float *a_log, global const float *dt_bias,
                   global const float *skip, const Sizes s, global const int *first_token,
                   global const ulong *states, MATRIX(out), const long sequences) {
  local float b_row[ROWS * SLICES], c_row[ROWS * SLICES];  // past STATES: zeros
  local float sums[SLICES][COLUMNS];
  const int item = get_local_id(0), items = COLUMNS * SLICES, own = item % COLUMNS, slice = item / COLUMNS;
  const long heads = s.num_heads, tiles = (s.head_dim + COLUMNS - 1) / COLUMNS;
  for (int i = item; i < ROWS * SLICES; i += items) b_row[i] = c_row[i] = 0;
  for (long g = get_group_id(0); g < sequences * heads * tiles; g += get_num_groups(0)) {
    const long sequence = g / (heads * tiles), head = g / tiles % heads, column = g % tiles * COLUMNS + own;
    const long begin = first_token[sequence], end = first_token[sequence + 1];
    // A sequence without tokens keeps its state. PoCL 3.1 gives wrong results for barriers inside a branch.
    const int exists = column < s.head_dim && begin < end;
    const long b_at = heads * s.head_dim + head / (heads / s.num_groups) * STATES, c_at = b_at + s.num_groups * STATES;
    const long head_state = s.state + head * STATES * s.head_dim * (long)sizeof(float);
    const ulong before = states[2 * sequence];
    global const float *const old = (global const float *)(before + head_state);
    global float *const new = (global float *)(states[2 * sequence + 1] + head_state);
    float kept[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = slice * ROWS + i;
      kept[i] = before != 0 && exists && row < STATES ? old[row * s.head_dim + column] : 0.0f;
    }
    for (long t = begin; t < end; ++t) {
      barrier(CLK_LOCAL_MEM_FENCE);  // the previous token's b, c and sums have been read
      for (int i = item; i < STATES; i += items) {
        b_row[i] = LOAD(xbc, t, b_at + i);
        c_row[i] = LOAD(xbc, t, c_at + i);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      const float raw = LOAD(dt, t, head) + dt_bias[head], softplus = raw > 20 ? raw : log1p(exp(raw));
      const float step = clamp(softplus, s.least_step, s.most_step);
      const float decay = exp(-exp(a_log[head]) * step);
      const float x = exists ? LOAD(xbc, t, head * s.head_dim + column) : 0.0f, change = step * x;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        kept[i] = decay * kept[i] + b_row[slice * ROWS + i] * change;
        sum += c_row[slice * ROWS + i] * kept[i];
      }
      sums[slice][own] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (slice == 0 && exists) {
        sum = skip[head] * x;
        for (int i = 0; i < SLICES; ++i) sum += sums[i][own];
        STORE(out, t, head * s.head_dim + column, sum);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = slice * ROWS + i;
      if (exists && row < STATES) new[row * s.head_dim + column] = kept[i];
    }
  }
}
