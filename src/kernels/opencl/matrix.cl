// Backends opencl-matrix and opencl-matrix-wide: y[r, n] = sum over k of x[row_index[r], k] * w[e(r), n, k] +
// bias[e(r), n] on matrix engines (dpas.cl), from layout rows16 (4-bit codes) or columns16 (8 and 16 bits).
//
// A subgroup multiplies up to ROWS rows of activations, a multiple of 8, with LANES * TILES rows of weights. It goes
// through blocks of 32 columns, which are two products deep. Weights become bf16 in registers, exactly: codes and
// differences of codes and zero points have at most 8 significant bits. The SPLITS subgroups of a work-group take
// every SPLITS-th block each and add their sums in local memory.
//
// Compiled once for each kind of weights:
//   -D WEIGHT_I4, _E2M1 (rows16); _I8, _E4M3, _BF16 (columns16)
//   -D ONE_GROUP: one scale for all columns, or none; else each block is scaled before it is added
//   -D WHOLE_BLOCKS: the number of columns is a multiple of 32, so no load needs a check
//   -D LANES=8 or 16, -D ROWS=n, -D TILES=n, -D SPLITS=n, -D EMULATED
#include "dpas.cl"
#include "elements.cl"
#include "experts.cl"
#include "matrix_weights.cl"

#define STRIPS (ROWS / 8)
#define WIDTH (LANES * TILES)  // rows of weights that a subgroup takes
#if defined(WHOLE_BLOCKS)
#define IS_WHOLE(k, end) 1
#else
#define IS_WHOLE(k, end) ((k) + 16 <= (end))
#endif

// Columns [k, k + 16) of 8 rows of activations, zeros from column `end` on.
Left load_left(global const ushort *const *x, long k, long end, int aligned) {
  const int lane = get_sub_group_local_id(), whole = IS_WHOLE(k, end);
  Left left;
  Pairs *const parts = (Pairs *)&left;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
#if LANES == 16
    parts[m] = whole || k + lane < end ? (short)x[m][k + lane] : (short)0;
#else
    global const ushort *const at = x[m] + k + 2 * lane;
    if (whole && aligned) {
      parts[m] = *(global const int *)at;
    } else {
      const uint low = whole || k + 2 * lane < end ? at[0] : 0u;
      const uint high = whole || k + 2 * lane + 1 < end ? at[1] : 0u;
      parts[m] = (int)(high << 16 | low);
    }
#endif
  }
  return left;
}

// Sums of this subgroup's rows of weights with ROWS rows of activations, over every SPLITS-th block from `split` on.
void multiply(global const uchar *base, const Shape *s, const long *rows, int split, global const ushort *const *x,
              int aligned, float8 sums[STRIPS][TILES]) {
#pragma unroll
  for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) sums[m][t] = (float8)(0.0f);
  }
  // Divide before the loop: these GPUs divide in software.
  const int blocks = s->padded_cols / BLOCK;
  int scale_rows[TILES], group = split / s->group_blocks, in_group = split % s->group_blocks;
#pragma unroll
  for (int t = 0; t < TILES; ++t) scale_rows[t] = scale_row_of(s, rows[t]);
  for (int b = split; b < blocks; b += SPLITS) {
    const long g = group * s->scale_group;
    in_group += SPLITS;
    for (; in_group >= s->group_blocks; in_group -= s->group_blocks) ++group;
    float zeros[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) zeros[t] = zero_at(base, s, scale_rows[t] + g);
    int8 right[2][TILES];
    load_right(base, s, rows, 2 * b, zeros, right[0]);
    load_right(base, s, rows, 2 * b + 1, zeros, right[1]);
#if !defined(ONE_GROUP)
    float scales[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) scales[t] = scale_at(base, s, scale_rows[t] + g);
#endif
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
      const Left first = load_left(x + 8 * m, (long)b * BLOCK, s->k, aligned);
      const Left second = load_left(x + 8 * m, (long)b * BLOCK + 16, s->k, aligned);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#if defined(ONE_GROUP)
        sums[m][t] = multiply_add(first, right[0][t], sums[m][t]);
        sums[m][t] = multiply_add(second, right[1][t], sums[m][t]);
#else
        float8 part = multiply_add(first, right[0][t], (float8)(0.0f));
        part = multiply_add(second, right[1][t], part);
        sums[m][t] += part * scales[t];
#endif
      }
    }
  }
}

// A work-group takes WIDTH rows of weights and up to ROWS rows of activations of one expert. With by_row, there is a
// group for each row, and the one of an expert's first, ROWS + first, ... row works. Else there are `strips` groups
// for each expert, which go through its rows.
SUBGROUP kernel void matrix_linear(global const uchar *weights, const Shape s, MATRIX(x), global const int *row_index,
                                   global const int *offsets, MATRIX(y), const long num_rows, const int by_row,
                                   const long strips) {
  local float shared[SPLITS * ROWS * WIDTH];
  const int lane = get_sub_group_local_id(), split = get_sub_group_id();
  const int aligned = x_stride % 2 == 0 && (ulong)x % 4 == 0;
  const long tiles = (s.n + WIDTH - 1) / WIDTH;
  const long places = by_row ? num_rows : s.num_experts * strips;
  for (long group = get_group_id(0); group < places * tiles; group += get_num_groups(0)) {
    const long place = group / tiles, first_row = group % tiles * WIDTH;
    const long e = !offsets ? 0 : by_row ? expert_of(offsets, s.num_experts, place) : place / strips;
    if (e == s.num_experts) continue;
    const long begin = offsets ? offsets[e] : 0, end = offsets ? min((long)offsets[e + 1], num_rows) : num_rows;
    if (by_row && (place - begin) % ROWS != 0) continue;
    global const uchar *const base = weights + e * s.expert_bytes;
    long rows[TILES];
#if defined(WEIGHT_I4) || defined(WEIGHT_E2M1)
#pragma unroll
    for (int t = 0; t < TILES; ++t) rows[t] = min(first_row + OFFSET(t, lane), s.padded_rows - 1);
#else
    const long own = min(first_row + OFFSET(0, lane), s.padded_rows - TILES);
#pragma unroll
    for (int t = 0; t < TILES; ++t) rows[t] = own + t;
#endif
    const long from = by_row ? place : begin + place % strips * ROWS;
    const long to = by_row ? min(place + ROWS, end) : end;
    for (long first = from; first < to; first += by_row ? ROWS : strips * ROWS) {
      global const ushort *sources[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const long row = min(first + r, end - 1), source = row_index ? row_index[row] : row;
        sources[r] = (global const ushort *)x + source * x_stride;
      }
      float8 sums[STRIPS][TILES];
      multiply(base, &s, rows, split, sources, aligned, sums);
      barrier(CLK_LOCAL_MEM_FENCE);  // the sums of the rows before have been read
#pragma unroll
      for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          const float *const column = (const float *)&sums[m][t];
#pragma unroll
          for (int i = 0; i < 8; ++i) shared[(split * ROWS + 8 * m + i) * WIDTH + OFFSET(t, lane)] = column[i];
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = get_local_id(0); i < ROWS * WIDTH; i += SPLITS * LANES) {
        const long row = first + i / WIDTH, n = first_row + i % WIDTH;
        if (row >= end || n >= s.n) continue;
        float sum = 0;
        for (int other = 0; other < SPLITS; ++other) sum += shared[other * ROWS * WIDTH + i];
#if defined(ONE_GROUP)
        if (s.quantized) sum *= scale_at(base, &s, scale_row_of(&s, n));
#endif
        if (s.has_bias) sum += ((global const float *)(base + s.bias))[n];
        STORE(y, row, n, sum);
      }
    }
  }
}
