// Backend opencl-lines: y[r, n] = sum over k of x[row_index[r], k] * w[e(r), n, k] + bias[e(r), n] from layout
// vnni16: a line holds 4 bytes of columns for each of 16 rows of weights. Plain OpenCL C.
//
// On a GPU a work-item holds one of the 16 rows, so that 16 neighbours read a line of 64 bytes; SPLITS groups of 16
// share the columns and add their sums in local memory. On a CPU (-D WIDE) a work-item holds all 16 rows as vectors
// of float16, and there is one split. ROWS rows of activations share each decoded line.
//
// Compiled once for each kind of product:
//   -D WEIGHT_I4, _I8, _E4M3, _E2M1, _BF16, _F16 or _F32
//   -D X_BF16: floats; -D X_I8, X_E4M3: codes with scales
//   -D WHOLE_ROWS: one scale for all columns on both sides. A block's sum of integer codes is below 2^24, so a float
//     holds it exactly; the blocks are added as integers. Else each block's sum is scaled.
//   -D ROWS=n, -D SPLITS=n, -D PANELS=n: panels that a work-group takes one after another
#include "elements.cl"
#include "experts.cl"

#if defined(WIDE)
typedef float16 Real;
typedef uint16 Word;
typedef int16 Whole;
#define AS_REAL as_float16
#define TO_WHOLE convert_int16_rte
#define TO_REAL convert_float16
#else
typedef float Real;
typedef uint Word;
typedef int Whole;
#define AS_REAL as_float
#define TO_WHOLE convert_int_rte
#define TO_REAL convert_float
#endif

// The sections of layout vnni16, in bytes. As Shape in opencl_lines.cc.
typedef struct {
  long num_experts, expert_bytes, panel_bytes;
  long scales, zero_points, bias;
  long n, k, panels, blocks;
  int groups, group_blocks;         // of weights: groups of each row, and blocks of 32 columns in a group
  int scale_lanes, scale_exponent;  // 1 or 16 scales of a group in a panel; a byte with the exponent, or a float
  int quantized, has_zero_points, has_bias;
  int x_group_blocks;               // blocks that share a scale of an activation row
} Shape;

// COLS: columns in a line. CODE(word, j): the number of column j. A float whose exponent is that of 2^23 holds an
// integer in its lowest bits; subtracting the offset leaves the integer, exactly.
#define FROM_BITS(bits, offset) (AS_REAL((bits) | 0x4b000000u) - (8388608.0f + (offset)))
#if defined(WEIGHT_I4)
#define COLS 8
#define NIBBLE(word, j) (((word) >> (uint)((j) < 4 ? 8 * (j) : 8 * (j)-28)) & 15u)
#define CODE(word, j) FROM_BITS(NIBBLE(word, j) ^ 8u, 8.0f)
#elif defined(WEIGHT_E2M1)
#define COLS 8
#define NIBBLE(word, j) (((word) >> (uint)((j) < 4 ? 8 * (j) : 8 * (j)-28)) & 15u)
#define CODE(word, j) (AS_REAL((NIBBLE(word, j) & 8u) << 28u | (NIBBLE(word, j) & 7u) << 22u) * 0x1p126f)
#elif defined(WEIGHT_I8)
#define COLS 4
#define CODE(word, j) FROM_BITS((((word) >> (uint)(8 * (j))) & 255u) ^ 128u, 128.0f)
#elif defined(WEIGHT_E4M3)
#define COLS 4
#define BYTE(word, j) ((word) >> (uint)(8 * (j)))
#define CODE(word, j) (AS_REAL((BYTE(word, j) & 128u) << 24u | (BYTE(word, j) & 127u) << 20u) * 0x1p120f)
#elif defined(WEIGHT_BF16)
#define COLS 2
#define CODE(word, j) AS_REAL((j) == 0 ? (word) << 16u : (word) & 0xffff0000u)
#elif defined(WEIGHT_F16)
#define COLS 2
#define HALF(word, j) ((j) == 0 ? (word) : (word) >> 16u)
#define CODE(word, j) (AS_REAL((HALF(word, j) & 0x8000u) << 16u | (HALF(word, j) & 0x7fffu) << 13u) * 0x1p112f)
#else
#define COLS 1
#define CODE(word, j) AS_REAL(word)
#endif
#define BLOCK 32  // columns; a line of f32 weights may end a row in the middle of a block
#define LINES (BLOCK / COLS)

#if defined(X_BF16)
typedef ushort X;
#define X_REAL(bits) as_float((uint)(bits) << 16)
#elif defined(X_I8)
typedef uchar X;
#define X_REAL(bits) ((float)(char)(bits))
#else
typedef uchar X;
#define X_REAL(bits) (as_float(((uint)(bits) & 128u) << 24 | ((uint)(bits) & 127u) << 20) * 0x1p120f)
#endif

// Columns [k, k + COLS) of a row of activations, zeros past the last column. If `aligned`, one load reads them.
void load_x(global const X *x, long k, long end, int aligned, float *out) {
  if (aligned && k + COLS <= end) {
#if defined(X_BF16) && COLS > 1
    uint pairs[COLS / 2];
#if COLS == 8
    vstore4(*(global const uint4 *)(x + k), 0, pairs);
#elif COLS == 4
    vstore2(*(global const uint2 *)(x + k), 0, pairs);
#else
    pairs[0] = *(global const uint *)(x + k);
#endif
#pragma unroll
    for (int j = 0; j < COLS; ++j) out[j] = as_float(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u);
#elif COLS >= 4
    uint fours[COLS / 4];
#if COLS == 8
    vstore2(*(global const uint2 *)(x + k), 0, fours);
#else
    fours[0] = *(global const uint *)(x + k);
#endif
#pragma unroll
    for (int j = 0; j < COLS; ++j) out[j] = X_REAL((uchar)(fours[j / 4] >> 8 * (j % 4)));
#else
    for (int j = 0; j < COLS; ++j) out[j] = X_REAL(x[k + j]);
#endif
  } else {
    for (int j = 0; j < COLS; ++j) out[j] = k + j < end ? X_REAL(x[k + j]) : 0.0f;
  }
}

// Rows of activations that a work-group reads, and their scales.
typedef struct {
  global const X *row[ROWS];
  global const float *scales[ROWS];
} Sources;

Real scale_of(global const uchar *base, const Shape *s, long panel, long group, int lane) {
  const long at = (panel * s->groups + group) * s->scale_lanes;
  global const uchar *const scales = base + s->scales;
  global const float *const floats = (global const float *)scales;
#if defined(WIDE)
  if (s->scale_exponent) {
    if (s->scale_lanes == 1) return (Real)(as_float(max((uint)scales[at] << 23, 0x00400000u)));
    return as_float16(max(convert_uint16(vload16(at / 16, scales)) << 23u, (uint16)0x00400000u));
  }
  if (s->scale_lanes == 1) return (Real)(floats[at]);
  return vload16(at / 16, floats);
#else
  const long own = at + (s->scale_lanes == 1 ? 0 : lane);
  // 2^-127 is a subnormal float: exponent 0, mantissa 2^22.
  if (s->scale_exponent) return as_float(max((uint)scales[own] << 23, 0x00400000u));
  return floats[own];
#endif
}

Real zero_of(global const uchar *base, const Shape *s, long panel, long group, int lane) {
  if (!s->has_zero_points) return (Real)(0.0f);
  global const char *const zeros = (global const char *)(base + s->zero_points) + (panel * s->groups + group) * 16;
#if defined(WIDE)
  return convert_float16(vload16(0, zeros));
#else
  return (float)zeros[lane];
#endif
}

#if defined(WIDE)
#define LINE(at) vload16(at, lines)
#else
#define LINE(at) lines[(at) * 16 + lane]
#endif

// Sums of one panel's rows with ROWS rows of activations, over every SPLITS-th block from `split` on.
void multiply(global const uchar *base, const Shape *s, long panel, int lane, int split, const Sources *x, int aligned,
              Real *sums) {
  global const uint *const lines = (global const uint *)(base + panel * s->panel_bytes);
#if defined(WHOLE_ROWS)
  Whole whole[ROWS];
  for (int r = 0; r < ROWS; ++r) whole[r] = (Whole)(0);
#endif
  for (int r = 0; r < ROWS; ++r) sums[r] = (Real)(0.0f);
  for (long b = split; b < s->blocks; b += SPLITS) {
    const long g = s->quantized ? b / s->group_blocks : 0;
    const Real zero = zero_of(base, s, panel, g, lane);
    Real part[ROWS];
    for (int r = 0; r < ROWS; ++r) part[r] = (Real)(0.0f);
    Word words[LINES];
    if ((b + 1) * BLOCK <= s->k) {
#pragma unroll
      for (int l = 0; l < LINES; ++l) words[l] = LINE(b * LINES + l);
    } else {
      // f32 lines may end within the block. What is not read meets activations that are 0.
      const int last = (int)((s->k - b * BLOCK + COLS - 1) / COLS);
      for (int l = 0; l < LINES; ++l) words[l] = LINE(b * LINES + min(l, last - 1));
    }
#pragma unroll
    for (int l = 0; l < LINES; ++l) {
      Real w[COLS];
#pragma unroll
      for (int j = 0; j < COLS; ++j) w[j] = CODE(words[l], j) - zero;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float a[COLS];
        load_x(x->row[r], b * BLOCK + l * COLS, s->k, aligned, a);
#pragma unroll
        for (int j = 0; j < COLS; ++j) part[r] += w[j] * a[j];
      }
    }
#if defined(WHOLE_ROWS)
    for (int r = 0; r < ROWS; ++r) whole[r] += TO_WHOLE(part[r]);
#else
    const Real scale = s->quantized ? scale_of(base, s, panel, g, lane) : (Real)(1.0f);
    for (int r = 0; r < ROWS; ++r) {
#if defined(X_BF16)
      sums[r] += part[r] * scale;
#else
      sums[r] += part[r] * scale * x->scales[r][b / s->x_group_blocks];
#endif
    }
#endif
  }
#if defined(WHOLE_ROWS)
  for (int r = 0; r < ROWS; ++r) sums[r] = AS_REAL(whole[r]);  // added as integers, scaled at the end
#endif
}

Real finished(global const uchar *base, const Shape *s, long panel, int lane, const Sources *x, int r, Real sum) {
#if defined(WHOLE_ROWS)
#if defined(WIDE)
  sum = TO_REAL(as_int16(sum));
#else
  sum = TO_REAL(as_int(sum));
#endif
  sum = sum * x->scales[r][0] * scale_of(base, s, panel, 0, lane);
#endif
  if (!s->has_bias) return sum;
  global const float *const bias = (global const float *)(base + s->bias);
#if defined(WIDE)
  return sum + vload16(panel, bias);
#else
  return sum + bias[panel * 16 + lane];
#endif
}

// A work-group takes PANELS neighbouring panels and up to ROWS rows of one expert. With by_row, there is a group for
// each row, and the one of an expert's first, ROWS + first, ... row works. Else there are `strips` groups for each
// expert, which go through its rows.
#if defined(WIDE)
#define LOCAL_SUMS 1
#else
#define LOCAL_SUMS (SPLITS * 16 * ROWS)
#endif
kernel void lines_linear(global const uchar *weights, const Shape s, MATRIX(x), global const float *x_scales,
                         const long x_num_scales, global const int *row_index, global const int *offsets, MATRIX(y),
                         const long num_rows, const int aligned, const int by_row, const long strips) {
  local float shared[LOCAL_SUMS];
  const long panel_groups = (s.panels + PANELS - 1) / PANELS;
  const long places = by_row ? num_rows : s.num_experts * strips;
  for (long group = get_group_id(0); group < places * panel_groups; group += get_num_groups(0)) {
    const long place = group / panel_groups, first_panel = group % panel_groups * PANELS;
    const long e = !offsets ? 0 : by_row ? expert_of(offsets, s.num_experts, place) : place / strips;
    if (e == s.num_experts) continue;
    const long begin = offsets ? offsets[e] : 0, end = offsets ? min((long)offsets[e + 1], num_rows) : num_rows;
    if (by_row && (place - begin) % ROWS != 0) continue;
    global const uchar *const base = weights + e * s.expert_bytes;
    const long from = by_row ? place : begin + place % strips * ROWS;
    const long to = by_row ? min(place + ROWS, end) : end;
    for (long first = from; first < to; first += by_row ? ROWS : strips * ROWS) {
      Sources sources;
      for (int r = 0; r < ROWS; ++r) {
        const long row = min(first + r, end - 1), source = row_index ? row_index[row] : row;
        sources.row[r] = (global const X *)x + source * x_stride;
        sources.scales[r] = x_scales + source * x_num_scales;
      }
      for (long panel = first_panel; panel < min(first_panel + PANELS, s.panels); ++panel) {
        Real sums[ROWS];
#if defined(WIDE)
        multiply(base, &s, panel, 0, 0, &sources, aligned, sums);
        for (int r = 0; r < ROWS; ++r) {
          if (first + r >= end) break;
          const Real out = finished(base, &s, panel, 0, &sources, r, sums[r]);
          const long at = (first + r) * y_stride + panel * 16;
          if (y_dtype == F32 && panel * 16 + 16 <= s.n) {
            vstore16(out, 0, (global float *)y + at);
          } else {
            float each[16];
            vstore16(out, 0, each);
            for (int lane = 0; lane < min(16L, s.n - panel * 16); ++lane)
              store_element(y, y_dtype, at + lane, each[lane]);
          }
        }
#else
        const int lane = get_local_id(0) % 16, split = get_local_id(0) / 16;
        multiply(base, &s, panel, lane, split, &sources, aligned, sums);
        barrier(CLK_LOCAL_MEM_FENCE);  // the sums of the panel before have been read
        for (int r = 0; r < ROWS; ++r) shared[(r * SPLITS + split) * 16 + lane] = sums[r];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int r = split; r < ROWS; r += SPLITS) {
#if defined(WHOLE_ROWS)
          int whole = 0;
          for (int other = 0; other < SPLITS; ++other) whole += as_int(shared[(r * SPLITS + other) * 16 + lane]);
          const float sum = as_float(whole);
#else
          float sum = 0;
          for (int other = 0; other < SPLITS; ++other) sum += shared[(r * SPLITS + other) * 16 + lane];
#endif
          const long n = panel * 16 + lane;
          if (first + r < end && n < s.n) STORE(y, first + r, n, finished(base, &s, panel, lane, &sources, r, sum));
        }
#endif
      }
    }
  }
}
