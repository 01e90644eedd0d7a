// Lightning attention, token by token (Qin et al., "Lightning Attention-2", 2024). A work-group keeps COLUMNS columns of
// a head's state in registers, a work-item every row of one column in its SLICE of rows. The state is read once and
// written once per step. A token's bits do not depend on the tokens per step.
//
// Compiled for each number of columns of a head:
//   -D DIM=n, -D SLICES=n: work-items that share a column
#include "elements.cl"

#define COLUMNS 32
#define ROWS ((DIM + SLICES - 1) / SLICES)

float silu(const float x) {
  return x / (1.0f + exp(-x));
}

kernel void lightning(MATRIX(qkv), global const float *decays, const long heads, const long state,
                      global const int *first_token, global const ulong *states, MATRIX(out), const long sequences) {
  local float q[ROWS * SLICES], k[ROWS * SLICES];  // past DIM: zeros
  local float sums[SLICES][COLUMNS];
  const int item = get_local_id(0), items = COLUMNS * SLICES, own = item % COLUMNS, slice = item / COLUMNS;
  const long tiles = (DIM + COLUMNS - 1) / COLUMNS;
  for (int i = item; i < ROWS * SLICES; i += items) q[i] = k[i] = 0;
  for (long b = get_group_id(0); b < sequences * heads * tiles; b += get_num_groups(0)) {
    const long sequence = b / (heads * tiles), head = b / tiles % heads, column = b % tiles * COLUMNS + own;
    const long begin = first_token[sequence], end = first_token[sequence + 1];
    // A sequence without tokens keeps its state. PoCL 3.1 gives wrong results for barriers inside a branch.
    const int exists = column < DIM && begin < end;
    const long head_state = state + head * DIM * DIM * (long)sizeof(float), q_at = 3 * head * DIM;
    const ulong before = states[2 * sequence];
    global const float *const old = (global const float *)(before + head_state);
    global float *const new = (global float *)(states[2 * sequence + 1] + head_state);
    const float decay = decays[head];
    float kept[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = slice * ROWS + i;
      kept[i] = before != 0 && exists && row < DIM ? old[row * DIM + column] : 0.0f;
    }
    for (long t = begin; t < end; ++t) {
      barrier(CLK_LOCAL_MEM_FENCE);  // the previous token's q, k and sums have been read
      for (int i = item; i < DIM; i += items) {
        q[i] = silu(LOAD(qkv, t, q_at + i));
        k[i] = silu(LOAD(qkv, t, q_at + DIM + i));
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      const float value = exists ? silu(LOAD(qkv, t, q_at + 2 * DIM + column)) : 0.0f;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        kept[i] = decay * kept[i] + k[slice * ROWS + i] * value;
        sum += q[slice * ROWS + i] * kept[i];
      }
      sums[slice][own] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (slice == 0 && exists) {
        sum = 0;
        for (int i = 0; i < SLICES; ++i) sum += sums[i][own];
        STORE(out, t, head * DIM + column, sum);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = slice * ROWS + i;
      if (exists && row < DIM) new[row * DIM + column] = kept[i];
    }
  }
}
