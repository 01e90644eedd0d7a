// Backends opencl-matrix and opencl-matrix-wide: y[r, n] = sum over k of x[row_index[r], k] * w[e(r), n, k] +
// bias[e(r), n] on matrix engines (dpas.cl), from layout rows16 (4-bit codes) or columns16 (8 and 16 bits).
//
// A subgroup multiplies up to ROWS rows of activations, a multiple of 8, by LANES * TILES rows of weights, in blocks of
// 32 columns. Split-K: the SPLITS subgroups of a work-group take every SPLITS-th block each and add their sums in local
// memory.
//
// Codes become bf16 in registers, exactly: codes and differences of codes and zero points have at most 8 significant
// bits, and f16 is the sum of two bf16. With INTEGERS, int8 activations and integer weights are multiplied as int8, and
// the sums of a block are exact.
//
// Compiled once for each kind of product:
//   -D WEIGHT_I4, _E2M1 (rows16); _I8, _E4M3, _BF16, _F16 (columns16)
//   -D X_BF16; -D X_E4M3, X_I8: codes with scales
//   -D INTEGERS: X_I8 with WEIGHT_I4 or WEIGHT_I8
//   -D ONE_GROUP: one scale of weights for all columns, or none; else each block is scaled before it is added
//   -D X_GROUPS: likewise, activations have several scales in a row
//   -D ZERO_POINTS: INTEGERS with WEIGHT_I8 and zero points
//   -D WHOLE_BLOCKS: the number of columns is a multiple of 32, so no load needs a check
//   -D LANES=8 or 16, -D ROWS=n, -D TILES=n, -D SPLITS=n, -D EMULATED
#include "matrix/dpas.cl"
#include "elements.cl"
#include "experts.cl"
#include "matrix/rows.cl"
#include "matrix/weights.cl"

#define STRIPS (ROWS / 8)
#define WIDTH (LANES * TILES)  // rows of weights of a subgroup

// One sum for all columns: integers stay integers to the end of the row.
#if defined(ONE_GROUP) && !defined(X_GROUPS)
#define WHOLE_ROWS
typedef Sums RowSums;
#else
typedef float8 RowSums;
#endif
// The factors of a block's products, applied in the expression that adds them: a multiply-add does both.
#if defined(ONE_GROUP)
#define BLOCK_SCALE x_scale
#elif defined(X_GROUPS)
#define BLOCK_SCALE (x_scale * scales[t])
#else
#define BLOCK_SCALE scales[t]
#endif

#if defined(WHOLE_ROWS) && defined(INTEGERS)
typedef int Sum;
#else
typedef float Sum;
#endif

// The group of the current block, where a group has `blocks` blocks. These GPUs divide in software, so divide once.
typedef struct {
  int group, in_group, blocks;
} GroupCursor;
GroupCursor cursor_at(int block, int blocks) { return (GroupCursor){block / blocks, block % blocks, blocks}; }
void advance(GroupCursor *cursor) {
  cursor->in_group += SPLITS;
  for (; cursor->in_group >= cursor->blocks; cursor->in_group -= cursor->blocks) ++cursor->group;
}

// The products of a block of 8 rows of activations with one tile, added to `sums`.
Sums add_products(const Left left[PRODUCTS], int8 right[PRODUCTS][TERMS][TILES], int t, float zero, Sums sums) {
#pragma unroll
  for (int p = 0; p < PRODUCTS; ++p) {
#pragma unroll
    for (int term = 0; term < TERMS; ++term) sums = multiply_add(left[p], right[p][term][t], sums);
#if defined(ZERO_POINTS)
    sums -= multiply_add(left[p], (int8)(0x01010101), (Sums)(0)) * (int)zero;
#endif
  }
  return sums;
}

// Sums of this subgroup's rows of weights with ROWS rows of activations, over every SPLITS-th block from `split` on.
// x_scale_rows: for each strip, the index in x_scales of the row whose scales this lane loads for scales_of.
void multiply(global const uchar *base, const Shape *s, const long *rows, int split, global const X *const *x,
              global const float *x_scales, const long *x_scale_rows, int aligned, RowSums sums[STRIPS][TILES]) {
#pragma unroll
  for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) sums[m][t] = (RowSums)(0);
  }
  const int blocks = s->padded_cols / BLOCK;
  int scale_rows[TILES];
#pragma unroll
  for (int t = 0; t < TILES; ++t) scale_rows[t] = scale_row_of(s, rows[t]);
  GroupCursor cursor = cursor_at(split, s->group_blocks);
#if defined(X_GROUPS)
  GroupCursor x_cursor = cursor_at(split, s->x_group_blocks);
#endif
  for (int b = split; b < blocks; b += SPLITS) {
    const long g = cursor.group * s->scale_group;
    float zeros[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) zeros[t] = zero_at(base, s, scale_rows[t] + g);
    int8 right[PRODUCTS][TERMS][TILES];
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) load_right(base, s, rows, b, p, zeros, right[p]);
#if !defined(ONE_GROUP)
    float scales[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) scales[t] = scale_at(base, s, scale_rows[t] + g);
#endif
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
      Left left[PRODUCTS];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) left[p] = load_left(x + 8 * m, (long)b * BLOCK + p * DEPTH, s->k, aligned);
#if defined(X_GROUPS)
      const float8 x_scale = scales_of(x_scales[x_scale_rows[m] + x_cursor.group]);
#endif
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#if defined(WHOLE_ROWS)
        sums[m][t] = add_products(left, right, t, zeros[t], sums[m][t]);
#else
        sums[m][t] += convert_float8(add_products(left, right, t, zeros[t], (Sums)(0))) * BLOCK_SCALE;
#endif
      }
    }
    advance(&cursor);
#if defined(X_GROUPS)
    advance(&x_cursor);
#endif
  }
}

// A work-group takes WIDTH rows of weights and up to ROWS rows of activations of one expert. With by_row each row has a
// group, and only those of rows 0, ROWS, 2 * ROWS, ... of an expert work. Otherwise each expert has `strips` groups,
// which step over its rows.
SUBGROUP kernel void matrix_linear(global const uchar *weights, const Shape s, MATRIX(x), global const float *x_scales,
                                   const long x_num_scales, global const int *row_index, global const int *offsets,
                                   MATRIX(y), const long num_rows, const int by_row, const long strips) {
  local Sum shared[SPLITS * ROWS * WIDTH];
  const int lane = get_sub_group_local_id(), split = get_sub_group_id();
  const int aligned = x_stride * sizeof(X) % sizeof(Codes) == 0 && (ulong)x % sizeof(Codes) == 0;
  const long tiles = (s.n + WIDTH - 1) / WIDTH;
  const long row_tiles = by_row ? num_rows : s.num_experts * strips;
  for (long group = get_group_id(0); group < row_tiles * tiles; group += get_num_groups(0)) {
    const long row_tile = group / tiles, first_row = group % tiles * WIDTH;
    const long e = !offsets ? 0 : by_row ? expert_of(offsets, s.num_experts, row_tile) : row_tile / strips;
    if (e == s.num_experts) continue;
    const long begin = offsets ? offsets[e] : 0, end = offsets ? min((long)offsets[e + 1], num_rows) : num_rows;
    if (by_row && (row_tile - begin) % ROWS != 0) continue;
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
    const long from = by_row ? row_tile : begin + row_tile % strips * ROWS;
    const long to = by_row ? min(row_tile + ROWS, end) : end;
    for (long first = from; first < to; first += by_row ? ROWS : strips * ROWS) {
      global const X *sources[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const long row = min(first + r, end - 1), source = row_index ? row_index[row] : row;
        sources[r] = (global const X *)x + source * x_stride;
      }
      long x_scale_rows[STRIPS];
#pragma unroll
      for (int m = 0; m < STRIPS; ++m) {
        const long row = min(first + 8 * m + lane % 8, end - 1);
        x_scale_rows[m] = (row_index ? row_index[row] : row) * x_num_scales;
      }
      RowSums sums[STRIPS][TILES];
      multiply(base, &s, rows, split, sources, x_scales, x_scale_rows, aligned, sums);
      barrier(CLK_LOCAL_MEM_FENCE);  // the sums of the previous rows have been read
#pragma unroll
      for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          const Sum *const column = (const Sum *)&sums[m][t];
#pragma unroll
          for (int i = 0; i < 8; ++i) shared[(split * ROWS + 8 * m + i) * WIDTH + OFFSET(t, lane)] = column[i];
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = get_local_id(0); i < ROWS * WIDTH; i += SPLITS * LANES) {
        const long row = first + i / WIDTH, n = first_row + i % WIDTH;
        if (row >= end || n >= s.n) continue;
        Sum sum = 0;
        for (int other = 0; other < SPLITS; ++other) sum += shared[other * ROWS * WIDTH + i];
        float out = sum;
#if !defined(X_BF16) && !defined(X_GROUPS)
        out *= x_scales[(row_index ? row_index[row] : row) * x_num_scales];
#endif
#if defined(ONE_GROUP)
        if (s.quantized) out *= scale_at(base, &s, scale_row_of(&s, n));
#endif
        if (s.has_bias) out += ((global const float *)(base + s.bias))[n];
        STORE(y, row, n, out);
      }
    }
  }
}
