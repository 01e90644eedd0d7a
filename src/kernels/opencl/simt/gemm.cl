// Backend opencl-simt, many rows of each expert. A work-group of 128 computes tiles of 64 rows of activations by eight
// panels, 128 rows of weights. It converts blocks of 32 columns of both to f32 in local memory. For each column, each
// work-item adds 8 by 8 products.
//
// Compiled with the options of codes.cl.
#include "simt/arguments.cl"

#define PANELS 8
#define TILE_N (16 * PANELS)
#define TILE_ROWS 64
#define ITEMS 128
#define WORDS (TILE_N * ROW_BLOCKS / ITEMS)                 // that a work-item converts
#define EIGHTS (TILE_ROWS * BLOCK / ITEMS / 8)         // of activations that a work-item converts
#define EIGHTS_APART (ITEMS / TILE_ROWS * 8)           // columns

// Codes whose sums stay integers, and their sums; or products of a code and its scale.
#if defined(WHOLE_ROWS)
typedef int Value;
#define SCALED(value, scale) convert_int_rte(value)
#else
typedef float Value;
#define SCALED(value, scale) ((value) * (scale))
#endif

// Loads a work-item's share of block b, of the weights and of row `row` of activations. Call before the barrier.
typedef struct {
  uint words[WORDS];
  float scale[WORDS], zero[WORDS];
#if defined(MINIMUMS)
  float minimum[WORDS];
#endif
  float x[EIGHTS][8];
} Loaded;

void load_block(global const uchar *base, const Shape *s, const Epilogue *epilogue, long tile, int b, int item,
                global const X *row, global const float *x_scales, int aligned, Loaded *to) {
  const int g = s->quantized ? b / s->group_blocks : 0;
  const int last = (int)((s->k - (long)b * BLOCK + COLS - 1) / COLS) - 1;  // f32 row blocks may end within the block
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const int at = item + i * ITEMS, lane = at % 16, l = at / 16 % ROW_BLOCKS;
    const long panel = min(panel_of(epilogue, tile, at / 16 / ROW_BLOCKS, PANELS), s->panels - 1);
    global const uint *const row_blocks = (global const uint *)(base + panel * s->panel_bytes);
    to->words[i] = row_blocks[(b * ROW_BLOCKS + min(l, last)) * 16 + lane];
    to->scale[i] = scale_of(base, s, panel, g, lane);
    to->zero[i] = zero_of(base, s, panel, g, lane);
#if defined(MINIMUMS)
    to->minimum[i] = minimum_of(base, s, panel, g, lane);
#endif
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

// Writes a loaded block to local memory. Call after the barrier.
void keep_block(const Loaded *from, int item, local Value (*weights)[TILE_N], local Value (*x)[TILE_ROWS]) {
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const int at = item + i * ITEMS, lane = at % 16, l = at / 16 % ROW_BLOCKS, p = at / 16 / ROW_BLOCKS;
    float w[COLS];
    unpack(from->words[i], from->zero[i], w);
#if defined(MINIMUMS)
#pragma unroll
    for (int j = 0; j < COLS; ++j) weights[l * COLS + j][p * 16 + lane] = w[j] * from->scale[i] - from->minimum[i];
#else
#pragma unroll
    for (int j = 0; j < COLS; ++j) weights[l * COLS + j][p * 16 + lane] = SCALED(w[j], from->scale[i]);
#endif
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

// Stores rows [top, past) of the result from their sums in local memory.
void store_rows(local const Value (*sums)[TILE_N], global const uchar *base, const Shape *s, const Epilogue *epilogue,
                long tile, int item, global const int *row_index, global const float *x_scales, long x_num_scales,
                long top, long past, global void *y, long y_stride, int y_dtype) {
  const int cols = epilogue->gates == 0 ? TILE_N : TILE_N / 2;
  const int col = item % cols, p = col / 16, lane = col % 16;
  const long gate_panel = panel_of(epilogue, tile, p, PANELS), n = gate_panel * 16 + lane;
  const long panel = epilogue->gates == 0 ? gate_panel : panel_of(epilogue, tile, p + PANELS / 2, PANELS);
  const long result_cols = epilogue->gates == 0 ? s->n : epilogue->gates * 16;
  for (long r = top + item / cols; r < past; r += ITEMS / cols) {
    if (n < result_cols) {
      global const float *const own = x_scales + (row_index ? row_index[r] : r) * x_num_scales;
      local const Value *const row = sums[r - top];
      const float gate = epilogue->gates == 0 ? 0.0f : output_of(row[col], base, s, gate_panel, lane, own);
      const float value = output_of(row[epilogue->gates == 0 ? col : col + TILE_N / 2], base, s, panel, lane, own);
      STORE(y, r, n, result_of(epilogue, gate, value));
    }
    // Columns of y past the result are zeros.
    for (long z = result_cols + col; tile == 0 && z < epilogue->cols; z += cols) STORE(y, r, z, 0.0f);
  }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gemm(SIMT_ARGUMENTS) {
  local Value w_block[BLOCK][TILE_N], x_block[BLOCK][TILE_ROWS];
  // A work-item adds rows 8 * down ... of the tile, and columns 4 * across ... of the first and of the last four
  // panels. So it has gates together with the outputs that they multiply.
  const int item = get_local_id(0), across = item % 16, down = item / 16;
  const long tiles = panel_groups(&s, &epilogue, PANELS);
  for (long group = get_group_id(0); group < NUM_ROW_TILES * tiles; group += get_num_groups(0)) {
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
        barrier(CLK_LOCAL_MEM_FENCE);  // the previous block has been read
        keep_block(&loaded, item, w_block, x_block);
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 4
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
      // Store the results by halves of the tile through local memory, so that neighbours store to neighbouring columns.
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        barrier(CLK_LOCAL_MEM_FENCE);  // the previous contents have been read
        if (down / 4 == half_tile) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) w_block[down % 4 * 8 + i][j / 4 * 64 + across * 4 + j % 4] = sums[i][j];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const long top = first + half_tile * (TILE_ROWS / 2);
        store_rows(w_block, base, &s, &epilogue, tile, item, row_index, x_scales, x_num_scales, top,
                   min(rows.end, top + TILE_ROWS / 2), y, y_stride, y_dtype);
      }
    }
  }
}
