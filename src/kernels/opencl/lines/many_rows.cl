// Backend opencl-lines, many rows of each expert. A work-group of 128 computes tiles of 64 rows of activations by eight
// panels, 128 rows of weights. Blocks of 32 columns of both are decoded to local memory; each work-item adds 8 by 8
// products for each column.
//
// Compiled as codes.cl says.
#include "lines/arguments.cl"

#define PANELS 8
#define TILE_N (16 * PANELS)
#define TILE_ROWS 64
#define ITEMS 128
#define WORDS (TILE_N * LINES / ITEMS)                 // that a work-item decodes
#define EIGHTS (TILE_ROWS * BLOCK / ITEMS / 8)         // of activations that a work-item decodes
#define EIGHTS_APART (ITEMS / TILE_ROWS * 8)           // columns

// Codes whose sums stay integers, and their sums; or products of a code and its scale.
#if defined(WHOLE_ROWS)
typedef int Value;
typedef int4 Value4;
#define SCALED(value, scale) convert_int_rte(value)
#else
typedef float Value;
typedef float4 Value4;
#define SCALED(value, scale) ((value) * (scale))
#endif

// Reads block b of the weights and of row `row` of activations, both in a work-item's share, before the barrier ...
typedef struct {
  uint words[WORDS];
  float scale[WORDS], zero[WORDS];
  float x[EIGHTS][8];
} Loaded;

void load_block(global const uchar *base, const Shape *s, const Epilogue *epilogue, long tile, int b, int item,
                global const X *row, global const float *x_scales, int aligned, Loaded *to) {
  const int g = s->quantized ? b / s->group_blocks : 0;
  const int last = (int)((s->k - (long)b * BLOCK + COLS - 1) / COLS) - 1;  // f32 lines may end within the block
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const int at = item + i * ITEMS, lane = at % 16, l = at / 16 % LINES;
    const long panel = min(panel_of(epilogue, tile, at / 16 / LINES, PANELS), s->panels - 1);
    global const uint *const lines = (global const uint *)(base + panel * s->panel_bytes);
    to->words[i] = lines[(b * LINES + min(l, last)) * 16 + lane];
    to->scale[i] = scale_of(base, s, panel, g, lane);
    to->zero[i] = zero_of(base, s, panel, g, lane);
  }
#if defined(X_BF16) || defined(WHOLE_ROWS)
  const float own = 1.0f;
#else
  const float own = x_scales[b / s->x_group_blocks];
#endif
#pragma unroll
  for (int i = 0; i < EIGHTS; ++i) {
    load_8(row, (long)b * BLOCK + item / TILE_ROWS * 8 + i * EIGHTS_APART, s->k, aligned, to->x[i]);
    for (int j = 0; j < 8; ++j) to->x[i][j] *= own;
  }
}

// ... and writes them to local memory after it.
void keep_block(const Loaded *from, int item, local Value (*weights)[TILE_N], local Value (*x)[TILE_ROWS]) {
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const int at = item + i * ITEMS, lane = at % 16, l = at / 16 % LINES, p = at / 16 / LINES;
    float w[COLS];
    decode(from->words[i], from->zero[i], w);
#pragma unroll
    for (int j = 0; j < COLS; ++j) weights[l * COLS + j][p * 16 + lane] = SCALED(w[j], from->scale[i]);
  }
#pragma unroll
  for (int i = 0; i < EIGHTS; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      x[item / TILE_ROWS * 8 + i * EIGHTS_APART + j][item % TILE_ROWS] = SCALED(from->x[i][j], 1.0f);
}

float output_of(Value sum, global const uchar *base, const Shape *s, long panel, int lane,
                global const float *x_scales) {
  float out = sum;
#if defined(WHOLE_ROWS)
  out = out * x_scales[0] * scale_of(base, s, panel, 0, lane);
#endif
  return s->has_bias ? out + ((global const float *)(base + s->bias))[panel * 16 + lane] : out;
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void many_rows(LINE_ARGUMENTS) {
  local Value w_block[BLOCK][TILE_N], x_block[BLOCK][TILE_ROWS];
  // A work-item adds rows 8 down ... of the tile, and columns 4 across ... of the first and of the last four panels:
  // of gates and of what they multiply.
  const int item = get_local_id(0), across = item % 16, down = item / 16;
  const long tiles = panel_groups(&s, &epilogue, PANELS);
  for (long group = get_group_id(0); group < NUM_PLACES * tiles; group += get_num_groups(0)) {
    const Rows rows = rows_of(offsets, s.num_experts, num_rows, group / tiles, by_row, strips, TILE_ROWS);
    const long tile = group % tiles;
    global const uchar *const base = weights + rows.expert * s.expert_bytes;
    for (long first = rows.first; first < rows.past; first += rows.step) {
      const long row = min(first + item % TILE_ROWS, rows.end - 1), source = row_index ? row_index[row] : row;
      Value sums[8][8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = 0;
      for (int b = 0; b < (int)s.blocks; ++b) {
        Loaded loaded;
        load_block(base, &s, &epilogue, tile, b, item, (global const X *)x + source * x_stride,
                   x_scales + source * x_num_scales, aligned, &loaded);
        barrier(CLK_LOCAL_MEM_FENCE);  // the block before has been read
        keep_block(&loaded, item, w_block, x_block);
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
        for (int k = 0; k < BLOCK; ++k) {
          Value xs[8], ws[8];
          vstore4(vload4(down * 2, x_block[k]), 0, xs);
          vstore4(vload4(down * 2 + 1, x_block[k]), 1, xs);
          vstore4(vload4(across, w_block[k]), 0, ws);
          vstore4(vload4(across + 16, w_block[k]), 1, ws);
#pragma unroll
          for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) sums[i][j] += xs[i] * ws[j];
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const long r = first + down * 8 + i;
        if (r >= rows.end) continue;
        global const float *const own = x_scales + (row_index ? row_index[r] : r) * x_num_scales;
        float outputs[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int col = across * 4 + j % 4;  // of 64
          const long panel = min(panel_of(&epilogue, tile, col / 16 + j / 4 * 4, PANELS), s.panels - 1);
          outputs[j] = output_of(sums[i][j], base, &s, panel, col % 16, own);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int col = across * 4 + j % 4;
          const long n = panel_of(&epilogue, tile, col / 16 + j / 4 * 4, PANELS) * 16 + col % 16;
          if (epilogue.gates == 0) {
            if (n < s.n) STORE(y, r, n, result_of(&epilogue, 0.0f, outputs[j]));
          } else if (j < 4 && n < RESULT_COLS) {
            STORE(y, r, n, result_of(&epilogue, outputs[j], outputs[j + 4]));
          }
        }
        // Columns of y past the result are zeros.
        for (long n = RESULT_COLS + across; tile == 0 && n < epilogue.cols; n += 16) STORE(y, r, n, 0.0f);
      }
    }
  }
}
