// The gated delta rule, token by token (Yang et al., "Gated Delta Networks", 2024). A work-group keeps COLUMNS columns
// of a head's state in registers, a work-item every row of one column in its SLICE of rows. The state is read once and
// written once per step. A token's bits do not depend on the tokens per step.
//
// Compiled for each number of columns of a key:
//   -D KEYS=n, -D SLICES=n: work-items that share a column
//   -D BY_CHANNEL: each channel of a key has a decay of its own (Kimi Team, "Kimi Linear", 2025)
#include "elements.cl"

#define COLUMNS 32
#define ROWS ((KEYS + SLICES - 1) / SLICES)
#define EPSILON 1e-6f  // added to the sums of squares of q and k

// As Sizes in ops_gated_delta.cc.
typedef struct {
  long num_key_heads, num_value_heads, value_dim, ba_group, state;
  float lower_bound;
} Sizes;

float softplus(const float x) {
  return x > 20 ? x : log1p(exp(x));
}

kernel void gated_delta(MATRIX(qkv), MATRIX(ba), global const float *a_log, global const float *dt_bias, const Sizes s,
                        global const int *first_token, global const ulong *states, MATRIX(out), const long sequences) {
  local float q[ROWS * SLICES], k[ROWS * SLICES];  // past KEYS: zeros
#ifdef BY_CHANNEL
  local float decays[ROWS * SLICES];
#endif
  local float known[SLICES][COLUMNS], sums[SLICES][COLUMNS];
  local float squares[SLICES][2];
  const int item = get_local_id(0), items = COLUMNS * SLICES, own = item % COLUMNS, slice = item / COLUMNS;
  const long heads = s.num_value_heads, tiles = (s.value_dim + COLUMNS - 1) / COLUMNS;
  for (int i = item; i < ROWS * SLICES; i += items) q[i] = k[i] = 0;
  for (long b = get_group_id(0); b < sequences * heads * tiles; b += get_num_groups(0)) {
    const long sequence = b / (heads * tiles), head = b / tiles % heads, column = b % tiles * COLUMNS + own;
    const long begin = first_token[sequence], end = first_token[sequence + 1];
    // A sequence without tokens keeps its state. PoCL 3.1 gives wrong results for barriers inside a branch.
    const int exists = column < s.value_dim && begin < end;
    const long key_head = head / (heads / s.num_key_heads);
    const long q_at = key_head * KEYS, k_at = (s.num_key_heads + key_head) * KEYS;
    const long v_at = 2 * s.num_key_heads * KEYS + head * s.value_dim + column;
#ifdef BY_CHANNEL
    const long b_at = head, a_at = s.ba_group + head * KEYS;
#else
    const long b_at = head / s.ba_group * 2 * s.ba_group + head % s.ba_group, a_at = b_at + s.ba_group;
#endif
    const long head_state = s.state + head * KEYS * s.value_dim * (long)sizeof(float);
    const ulong before = states[2 * sequence];
    global const float *const old = (global const float *)(before + head_state);
    global float *const new = (global float *)(states[2 * sequence + 1] + head_state);
    float kept[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = slice * ROWS + i;
      kept[i] = before != 0 && exists && row < KEYS ? old[row * s.value_dim + column] : 0.0f;
    }
    for (long t = begin; t < end; ++t) {
      barrier(CLK_LOCAL_MEM_FENCE);  // the previous token's q, k and sums have been read
      for (int i = item; i < KEYS; i += items) {
        q[i] = LOAD(qkv, t, q_at + i);
        k[i] = LOAD(qkv, t, k_at + i);
#ifdef BY_CHANNEL
        const float a = LOAD(ba, t, a_at + i) + dt_bias[head * KEYS + i], rate = exp(a_log[head]);
        decays[i] = exp(s.lower_bound != 0 ? s.lower_bound / (1.0f + exp(-rate * a)) : -rate * softplus(a));
#endif
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      float sum = 0, q_squares = 0, k_squares = 0;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const float q_row = q[slice * ROWS + i], k_row = k[slice * ROWS + i];
#ifdef BY_CHANNEL
        if (slice * ROWS + i < KEYS) kept[i] *= decays[slice * ROWS + i];
#endif
        sum += k_row * kept[i];
        q_squares += q_row * q_row;
        k_squares += k_row * k_row;
      }
      known[slice][own] = sum;
      if (own == 0) {
        squares[slice][0] = q_squares;
        squares[slice][1] = k_squares;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      sum = q_squares = k_squares = 0;
      for (int i = 0; i < SLICES; ++i) {
        sum += known[i][own];
        q_squares += squares[i][0];
        k_squares += squares[i][1];
      }
      const float q_scale = 1.0f / (sqrt(q_squares + EPSILON) * sqrt((float)KEYS));
      const float k_scale = 1.0f / sqrt(k_squares + EPSILON);
#ifdef BY_CHANNEL
      const float decay = 1;  // `kept` has decayed
#else
      const float decay = exp(-exp(a_log[head]) * softplus(LOAD(ba, t, a_at) + dt_bias[head]));
#endif
      const float strength = k_scale / (1.0f + exp(-LOAD(ba, t, b_at)));
      const float value = exists ? LOAD(qkv, t, v_at) : 0.0f;
      const float change = (value - decay * k_scale * sum) * strength;
      sum = 0;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        kept[i] = decay * kept[i] + k[slice * ROWS + i] * change;
        sum += q[slice * ROWS + i] * kept[i];
      }
      sums[slice][own] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (slice == 0 && exists) {
        sum = 0;
        for (int i = 0; i < SLICES; ++i) sum += sums[i][own];
        STORE(out, t, head * s.value_dim + column, sum * q_scale);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = slice * ROWS + i;
      if (exists && row < KEYS) new[row * s.value_dim + column] = kept[i];
    }
  }
}
