// Layers with a recurrent state: gates and short convolutions.
#include "elements.cl"
#include "sum_group.cl"

// The values of Gate in ops.h.
#define IDENTITY 0
#define SIGMOID 1
#define SILU 2
#define SOFTPLUS 3

float gated(float x, float by, int function) {
  if (function == IDENTITY) return x * by;
  // Above 20 the logarithm is `by` itself in f32, and the exponential may overflow.
  if (function == SOFTPLUS) return x * (by > 20.0f ? by : log1p(exp(by)));
  return (function == SILU ? x * by : x) / (exp(-by) + 1.0f);
}

kernel void gate(MATRIX(x), const long x_dim, MATRIX(by), const long by_dim, const long count, const int function,
                 const long rows, const long gated_cols) {
  FOR_EACH_ELEMENT(r, i, rows, gated_cols) {
    const long head = i / count, c = i % count, at = head * x_dim + c;
    STORE(x, r, at, gated(LOAD(x, r, at), LOAD(by, r, head * by_dim + c), function));
  }
}

kernel void gate_heads(MATRIX(x), MATRIX(by), const long head_dim, const int function, const long rows,
                       const long gated_cols) {
  FOR_EACH_ELEMENT(r, i, rows, gated_cols) {
    STORE(x, r, i, gated(LOAD(x, r, i), LOAD(by, r, i / head_dim), function));
  }
}

// A work-group normalizes each run of `size` columns. x and out may be the same: each work-item writes only the
// columns that it reads.
kernel void norm_and_gate(MATRIX(x), global const float *weight, const long size, const float epsilon,
                          const int function, MATRIX(by), const long by_dim, const long count, MATRIX(out),
                          const long rows, const long runs) {
  local float sums[MOST_SUMMED];
  const int lid = get_local_id(0), threads = get_local_size(0);
  for (long b = get_group_id(0); b < rows * runs; b += get_num_groups(0)) {
    const long r = b / runs, first = b % runs * size;
    float squares = 0;
    for (long c = lid; c < size; c += threads) {
      const float value = LOAD(x, r, first + c);
      squares += value * value;
    }
    const float scale = 1.0f / sqrt(sum_group(sums, squares) / (float)size + epsilon);
    for (long c = lid; c < size; c += threads) {
      const long at = first + c;
      const float factor = LOAD(by, r, at / count * by_dim + at % count);
      STORE(out, r, at, gated(LOAD(x, r, at) * scale * weight[c], factor, function));
    }
  }
}

// A work-group gates and normalizes each run of `size` columns of x.
kernel void gate_and_norm(MATRIX(x), MATRIX(by), global const float *weight, const long size, const float epsilon,
                          const long rows, const long runs) {
  local float sums[MOST_SUMMED];
  const int lid = get_local_id(0), threads = get_local_size(0);
  for (long b = get_group_id(0); b < rows * runs; b += get_num_groups(0)) {
    const long r = b / runs, first = b % runs * size;
    float squares = 0;
    for (long c = first + lid; c < first + size; c += threads) {
      const float value = gated(LOAD(x, r, c), LOAD(by, r, c), SILU);
      squares += value * value;
    }
    const float scale = 1.0f / sqrt(sum_group(sums, squares) / (float)size + epsilon);
    for (long c = first + lid; c < first + size; c += threads)
      STORE(x, r, c, gated(LOAD(x, r, c), LOAD(by, r, c), SILU) * scale * weight[c]);
  }
}

// As HeadSplit in ops.h.
typedef struct {
  long num_heads, head_dim, sizes[3];
} HeadSplit;

// The column of x that is column c of the output.
long column_from(const HeadSplit *split, long c) {
  if (split->num_heads == 0) return c;
  long before = 0;
  int section = 0;
  while (section < 2 && c >= split->num_heads * split->sizes[section]) {
    c -= split->num_heads * split->sizes[section];
    before += split->sizes[section++];
  }
  return c / split->sizes[section] * split->head_dim + before + c % split->sizes[section];
}

// `states` are addresses: of each sequence's state before the step, 0 for zeros, and after it.
// Without has_bias, `bias` is any memory.
kernel void convolve(MATRIX(x), global const float *weight, global const float *bias, const int has_bias,
                     const long taps, const int with_silu, const long state, const HeadSplit split,
                     global const int *sequences, global const int *first_token,
                     global const ulong *states, MATRIX(out), const long rows, const long cols) {
  const long past = taps - 1;
  FOR_EACH_ELEMENT(r, c, rows, cols) {
    const int sequence = sequences[r];
    const long first = first_token[sequence], t = r - first, count = first_token[sequence + 1] - first;
    const long from = column_from(&split, c);
    const ulong before = states[2 * sequence];
    global const float *const old = (global const float *)(before + state) + c;
    global float *const new = (global float *)(states[2 * sequence + 1] + state) + c;
#define INPUT(at) ((at) >= 0 ? LOAD(x, first + (at), from) : before != 0 ? old[(past + (at)) * cols] : 0.0f)
    float sum = has_bias ? bias[c] : 0.0f;
    for (long j = 0; j < taps; ++j) sum += weight[j * cols + c] * INPUT(t - past + j);
    STORE(out, r, c, with_silu ? gated(sum, sum, SIGMOID) : sum);
    // Row i of the new state is the step's row count - past + i. The first token keeps older rows.
    if (count - t <= past) new[(past - (count - t)) * cols] = INPUT(t);
    for (long i = 0; t == 0 && i < past - count; ++i) new[i * cols] = INPUT(count - past + i);
  }
}
