// Backend opencl-simt, few rows of each expert. Each work-item holds one row of four panels: 16 neighbours read row
// blocks of 64 bytes, and the panels share the converted activations. Split-K: SPLITS groups of 16 work-items split the
// columns and add their sums in local memory. ROWS rows of activations share each converted row block.
//
// Compiled with the options of codes.cl, -D ROWS=n and -D SPLITS=n.
#include "simt/arguments.cl"

#define PANELS 4
#define SUMS (PANELS * ROWS)

// Sums of integer products stay integers: those of a block are below 2^24, which a float holds.
#if defined(WHOLE_ROWS)
typedef int Sum;
#else
typedef float Sum;
#endif

// Rows of activations that a work-group reads, and their scales.
typedef struct {
  global const X *row[ROWS];
  global const float *scales[ROWS];
} Sources;

// Adds block b, 32 columns. Row `lane` of panel p begins in word begins[p] of the expert.
void add_block(global const uchar *base, const Shape *s, const int *panels, const uint *begins, int lane, int b,
               const Sources *x, int aligned, Sum sums[PANELS][ROWS]) {
  const int g = s->quantized ? b / s->group_blocks : 0;
  // f32 row blocks may end within the block. Blocks that are read twice are multiplied by zeros.
  const int last = (int)((s->k - (long)b * BLOCK + COLS - 1) / COLS) - 1;
  uint words[PANELS][ROW_BLOCKS];
  float zero[PANELS], scale[PANELS], partial[PANELS][ROWS];
#pragma unroll
  for (int p = 0; p < PANELS; ++p) {
#pragma unroll
    for (int l = 0; l < ROW_BLOCKS; ++l)
      words[p][l] = ((global const uint *)base)[begins[p] + (uint)(b * ROW_BLOCKS + min(l, last)) * 16];
    zero[p] = zero_of(base, s, panels[p], g, lane);
    scale[p] = scale_of(base, s, panels[p], g, lane);  // load the scale here: it arrives with the codes
#pragma unroll
    for (int r = 0; r < ROWS; ++r) partial[p][r] = 0;
  }
#if defined(MINIMUMS)
  float minimum[PANELS], x_sum[ROWS];
#pragma unroll
  for (int p = 0; p < PANELS; ++p) minimum[p] = minimum_of(base, s, panels[p], g, lane);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) x_sum[r] = 0;
#endif
#pragma unroll
  for (int c = 0; c < BLOCK / 8; ++c) {
    float w[PANELS][8];
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
#pragma unroll
      for (int l = 0; l < 8 / COLS; ++l) unpack(words[p][c * (8 / COLS) + l], zero[p], w[p] + l * COLS);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float a[8];
      load_8(x->row[r], (long)b * BLOCK + c * 8, s->k, aligned, a);
#if defined(MINIMUMS)
#pragma unroll
      for (int j = 0; j < 8; ++j) x_sum[r] += a[j];
#endif
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int j = 0; j < 8; ++j) partial[p][r] += w[p][j] * a[j];
    }
  }
#pragma unroll
  for (int p = 0; p < PANELS; ++p) {
#if defined(WHOLE_ROWS)
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[p][r] += convert_int_rte(partial[p][r]);
#else
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float scaled = partial[p][r] * scale[p];
#if defined(MINIMUMS)
      scaled -= x_sum[r] * minimum[p];
#endif
#if defined(X_BF16)
      sums[p][r] += scaled;
#else
      sums[p][r] += scaled * x->scales[r][b / s->x_group_blocks];
#endif
    }
#endif
  }
}

// The output of one row of weights: the sum over all splits, scales of whole rows and the bias.
float output_of(local const Sum *sums, global const uchar *base, const Shape *s, long panel, int lane,
                global const float *x_scales) {
  Sum sum = 0;
  for (int split = 0; split < SPLITS; ++split) sum += sums[split * 16 + lane];
  float out = sum;
#if defined(WHOLE_ROWS)
  out = out * x_scales[0] * scale_of(base, s, panel, 0, lane);
#endif
  return s->has_bias ? out + ((global const float *)(base + s->bias))[panel * 16 + lane] : out;
}

kernel __attribute__((reqd_work_group_size(SPLITS * 16, 1, 1))) void gemv(SIMT_ARGUMENTS) {
  local Sum shared[SUMS * SPLITS * 16];
  const int lane = get_local_id(0) % 16, split = get_local_id(0) / 16;
  const long across = panel_groups(&s, &epilogue, PANELS);
  for (long group = get_group_id(0); group < NUM_ROW_TILES * across; group += get_num_groups(0)) {
    const Rows rows = rows_of(offsets, s.num_experts, num_rows, group / across, by_row, strips, ROWS);
    global const uchar *const base = weights + rows.expert * s.expert_bytes;
    int panels[PANELS];
    uint begins[PANELS];
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
      panels[p] = (int)min(panel_of(&epilogue, group % across, p, PANELS), s.panels - 1);
      begins[p] = (uint)panels[p] * (uint)(s.panel_bytes / 4) + (uint)lane;
    }
    for (long first = rows.first; first < rows.past; first += rows.step) {
      Sources sources;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const long row = min(first + r, rows.end - 1), source = row_index ? row_index[row] : row;
        sources.row[r] = (global const X *)x + source * x_stride;
        sources.scales[r] = x_scales + source * x_num_scales;
      }
      Sum sums[PANELS][ROWS];
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sums[p][r] = 0;
      for (int b = split; b < (int)s.blocks; b += SPLITS)
        add_block(base, &s, panels, begins, lane, b, &sources, aligned, sums);
      barrier(CLK_LOCAL_MEM_FENCE);  // the sums of the previous rows have been read
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) shared[((p * ROWS + r) * SPLITS + split) * 16 + lane] = sums[p][r];
      barrier(CLK_LOCAL_MEM_FENCE);
      const int results = epilogue.gates == 0 ? PANELS : PANELS / 2;
      for (int i = split; i < results * ROWS; i += SPLITS) {
        const int p = i / ROWS, r = i % ROWS;
        const long panel = panel_of(&epilogue, group % across, p, PANELS), n = panel * 16 + lane;
        if (first + r >= rows.end || n >= RESULT_COLS) continue;
        const long source = row_index ? row_index[first + r] : first + r;
        global const float *const own = x_scales + source * x_num_scales;
        float gate = 0, value = output_of(shared + i * SPLITS * 16, base, &s, panel, lane, own);
        if (epilogue.gates > 0) {
          gate = value;
          value = output_of(shared + (i + results * ROWS) * SPLITS * 16, base, &s, panel + epilogue.gates, lane, own);
        }
        STORE(y, first + r, n, result_of(&epilogue, gate, value));
      }
      // Columns of y past the result are zeros.
      for (long n = RESULT_COLS + get_local_id(0); group % across == 0 && n < epilogue.cols; n += get_local_size(0))
        for (long r = first; r < min(first + ROWS, rows.end); ++r) STORE(y, r, n, 0.0f);
    }
  }
}
