// Backend opencl-vectors: for CPUs. A work-item is a whole work-group: it holds the 16 rows of a row block as vectors
// and computes PANELS neighbouring panels one after another. ROWS rows of activations share each converted row block.
//
// Compiled with the options of codes.cl, -D WIDE, -D ROWS=n and -D PANELS=n.
#include "simt/arguments.cl"

// Rows of activations that a work-item reads, and their scales.
typedef struct {
  global const X *row[ROWS];
  global const float *scales[ROWS];
} Sources;

// Outputs of one panel for ROWS rows of activations.
void multiply(global const uchar *base, const Shape *s, long panel, const Sources *x, int aligned, Real *outputs) {
  global const uint *const row_blocks = (global const uint *)(base + panel * s->panel_bytes);
#if defined(WHOLE_ROWS)
  int16 whole[ROWS];  // a block's sum of integer codes is below 2^24, so a float holds it
  for (int r = 0; r < ROWS; ++r) whole[r] = (int16)(0);
#endif
  for (int r = 0; r < ROWS; ++r) outputs[r] = (Real)(0.0f);
  for (int b = 0; b < (int)s->blocks; ++b) {
    const int g = s->quantized ? b / s->group_blocks : 0;
    const int last = (int)((s->k - (long)b * BLOCK + COLS - 1) / COLS) - 1;  // f32 row blocks may end within the block
    const Real zero = zero_of(base, s, panel, g, 0);
    Real partial[ROWS];
    for (int r = 0; r < ROWS; ++r) partial[r] = (Real)(0.0f);
#if defined(MINIMUMS)
    const Real minimum = minimum_of(base, s, panel, g, 0);
    float x_sum[ROWS];
    for (int r = 0; r < ROWS; ++r) x_sum[r] = 0;
#endif
#pragma unroll
    for (int c = 0; c < BLOCK / 8; ++c) {
      float a[ROWS][8];
      for (int r = 0; r < ROWS; ++r) load_8(x->row[r], (long)b * BLOCK + c * 8, s->k, aligned, a[r]);
#if defined(MINIMUMS)
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int j = 0; j < 8; ++j) x_sum[r] += a[r][j];
#endif
#pragma unroll
      for (int l = 0; l < 8 / COLS; ++l) {
        Real w[COLS];
        unpack(vload16(b * ROW_BLOCKS + min(c * (8 / COLS) + l, last), row_blocks), zero, w);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int j = 0; j < COLS; ++j) partial[r] += w[j] * a[r][l * COLS + j];
      }
    }
#if defined(WHOLE_ROWS)
    for (int r = 0; r < ROWS; ++r) whole[r] += convert_int16_rte(partial[r]);
#else
    const Real scale = scale_of(base, s, panel, g, 0);
    for (int r = 0; r < ROWS; ++r) {
      Real scaled = partial[r] * scale;
#if defined(MINIMUMS)
      scaled -= x_sum[r] * minimum;
#endif
#if defined(X_BF16)
      outputs[r] += scaled;
#else
      outputs[r] += scaled * x->scales[r][b / s->x_group_blocks];
#endif
    }
#endif
  }
  for (int r = 0; r < ROWS; ++r) {
#if defined(WHOLE_ROWS)
    outputs[r] = convert_float16(whole[r]) * x->scales[r][0] * scale_of(base, s, panel, 0, 0);
#endif
    if (s->has_bias) outputs[r] += vload16(panel, (global const float *)(base + s->bias));
  }
}

kernel void vectors(SIMT_ARGUMENTS) {
  const long results = epilogue.gates == 0 ? s.panels : epilogue.gates;
  const long across = (results + PANELS - 1) / PANELS;
  for (long group = get_group_id(0); group < NUM_ROW_TILES * across; group += get_num_groups(0)) {
    const Rows rows = rows_of(offsets, s.num_experts, num_rows, group / across, by_row, strips, ROWS);
    global const uchar *const base = weights + rows.expert * s.expert_bytes;
    const long first_panel = group % across * PANELS;
    for (long first = rows.first; first < rows.past; first += rows.step) {
      Sources sources;
      for (int r = 0; r < ROWS; ++r) {
        const long row = min(first + r, rows.end - 1), source = row_index ? row_index[row] : row;
        sources.row[r] = (global const X *)x + source * x_stride;
        sources.scales[r] = x_scales + source * x_num_scales;
      }
      for (long panel = first_panel; panel < min(first_panel + PANELS, results); ++panel) {
        Real gates[ROWS], values[ROWS];
        if (epilogue.gates > 0) multiply(base, &s, panel, &sources, aligned, gates);
        multiply(base, &s, panel + epilogue.gates, &sources, aligned, values);
        for (int r = 0; r < ROWS && first + r < rows.end; ++r) {
          const long at = (first + r) * y_stride + panel * 16;
          if (epilogue.function < 0 && y_dtype == F32 && panel * 16 + 16 <= s.n) {
            vstore16(values[r], 0, (global float *)y + at);
            continue;
          }
          float gate[16], value[16];
          if (epilogue.gates > 0) vstore16(gates[r], 0, gate);
          vstore16(values[r], 0, value);
          for (int lane = 0; lane < min(16L, RESULT_COLS - panel * 16); ++lane)
            store_element(y, y_dtype, at + lane, result_of(&epilogue, epilogue.gates > 0 ? gate[lane] : 0.0f, value[lane]));
        }
      }
      // Columns of y past the result are zeros.
      for (long n = RESULT_COLS; group % across == 0 && n < epilogue.cols; ++n)
        for (long r = first; r < min(first + ROWS, rows.end); ++r) STORE(y, r, n, 0.0f);
    }
  }
}
