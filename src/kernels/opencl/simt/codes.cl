// Layout vnni16 and rows of activations, converted to f32: shared by the kernels of opencl-simt and opencl-vectors. A
// row block (a line) holds 4 bytes of columns for each of 16 rows of weights. The row blocks of 16 rows are a panel.
//
// Compiled once for each kind of product:
//   -D WEIGHT_I4, _I8, _E4M3, _E2M1, _BF16, _F16 or _F32
//   -D X_BF16: floats; -D X_I8, X_E4M3: codes with scales
//   -D WHOLE_ROWS: one scale for all columns on both sides, so sums stay integers to the end of the row
//   -D MINIMUMS: the minimum of each group is subtracted from code * scale; there are no zero points
//   -D SCALES_F16, SCALES_STEPS: scales in f16, or scales and minimums in 8-bit integers times f16 factors; else floats
//   -D WIDE: a work-item holds all 16 rows of a row block as vectors, else one of them
#include "elements.cl"

#if defined(WIDE)
typedef float16 Real;
typedef uint16 Word;
#define AS_REAL as_float16
#else
typedef float Real;
typedef uint Word;
#define AS_REAL as_float
#endif

// The sections of layout vnni16, in bytes. As Shape in simt_linear.cc.
typedef struct {
  long num_experts, expert_bytes, panel_bytes;
  long scales, zero_points, minimums, bias;
  long n, k, panels, blocks;
  int groups, group_blocks;         // of weights: groups of each row, and blocks of 32 columns in a group
  int scale_lanes, scale_exponent;  // 1 or 16 scales of a group in a panel; a byte with the exponent, or a float
  int quantized, has_zero_points, has_bias;
  int x_group_blocks;               // blocks that share a scale of an activation row
  long step_bytes, factor_bytes;    // with SCALES_STEPS: of a panel's factors and steps, and of the factors
  int factor_groups, step_zero;     // likewise: groups that share a factor; the zero point of all codes
} Shape;

// COLS: columns of a row block. unpack(word, zero, out): these columns of a row, exactly, minus the zero point.
//
// Integers: a float whose exponent is that of 2^23 holds an integer in its lowest 23 bits. A code at bit 0, 4, 8 or 12
// is not shifted: one multiplication and one subtraction, both exact, scale it down and remove the offset.
#define INTEGER(word, bit, mask, offset)                                                  \
  (AS_REAL(((word) & ((uint)(mask) << (bit))) | 0x4b000000u) * (1.0f / (float)(1 << (bit))) - \
   ((float)(8388608 >> (bit)) + (offset)))
#if defined(WEIGHT_I4)
#define COLS 8
void unpack(Word word, Real zero, Real *out) {
  const Word low = word ^ 0x88888888u, high = low >> 16u;
  const Real offset = zero + 8.0f;
  out[0] = INTEGER(low, 0, 15, offset);
  out[4] = INTEGER(low, 4, 15, offset);
  out[1] = INTEGER(low, 8, 15, offset);
  out[5] = INTEGER(low, 12, 15, offset);
  out[2] = INTEGER(high, 0, 15, offset);
  out[6] = INTEGER(high, 4, 15, offset);
  out[3] = INTEGER(high, 8, 15, offset);
  out[7] = INTEGER(high, 12, 15, offset);
}
#elif defined(WEIGHT_I8)
#define COLS 4
void unpack(Word word, Real zero, Real *out) {
  const Word low = word ^ 0x80808080u, high = low >> 16u;
  const Real offset = zero + 128.0f;
  out[0] = INTEGER(low, 0, 255, offset);
  out[1] = INTEGER(low, 8, 255, offset);
  out[2] = INTEGER(high, 0, 255, offset);
  out[3] = INTEGER(high, 8, 255, offset);
}
// Floats: sign, exponent and mantissa move to their places in a float; the multiplication corrects the exponent.
#elif defined(WEIGHT_E2M1)
#define COLS 8
#define E2M1(top) (AS_REAL(((top) & 0x80000000u) | (((top) >> 6u) & 0x01c00000u)) * 0x1p126f)
void unpack(Word word, Real zero, Real *out) {
#pragma unroll
  for (int j = 0; j < 8; ++j) out[j] = E2M1(word << (uint)(j < 4 ? 28 - 8 * j : 56 - 8 * j)) - zero;
}
#elif defined(WEIGHT_E4M3)
#define COLS 4
#define E4M3(sign, rest) (AS_REAL(((sign) & 0x80000000u) | ((rest) & 0x07f00000u)) * 0x1p120f)
void unpack(Word word, Real zero, Real *out) {
  out[0] = E4M3(word << 24u, word << 20u) - zero;
  out[1] = E4M3(word << 16u, word << 12u) - zero;
  out[2] = E4M3(word << 8u, word << 4u) - zero;
  out[3] = E4M3(word, word >> 4u) - zero;
}
#elif defined(WEIGHT_BF16)
#define COLS 2
void unpack(Word word, Real zero, Real *out) {
  out[0] = AS_REAL(word << 16u) - zero;
  out[1] = AS_REAL(word & 0xffff0000u) - zero;
}
#elif defined(WEIGHT_F16)
#define COLS 2
#define HALF(sign, rest) (AS_REAL(((sign) & 0x80000000u) | ((rest) & 0x0fffe000u)) * 0x1p112f)
void unpack(Word word, Real zero, Real *out) {
  out[0] = HALF(word << 16u, word << 13u) - zero;
  out[1] = HALF(word, word >> 3u) - zero;
}
#else
#define COLS 1
void unpack(Word word, Real zero, Real *out) { out[0] = AS_REAL(word) - zero; }
#endif
#define BLOCK 32  // columns
#define ROW_BLOCKS (BLOCK / COLS)

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

// Columns [k, k + 8) of a row of activations, zeros past the last column. If `aligned`, one load reads them.
void load_8(global const X *x, long k, long end, int aligned, float *out) {
  if (aligned && k + 8 <= end) {
#if defined(X_BF16)
    const uint4 loaded = *(global const uint4 *)(x + k);
    const uint pairs[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] = as_float(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u);
#else
    const uint2 fours = *(global const uint2 *)(x + k);
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] = X_REAL((uchar)((j < 4 ? fours.x : fours.y) >> 8 * (j % 4)));
#endif
  } else {
    for (int j = 0; j < 8; ++j) out[j] = k + j < end ? X_REAL(x[k + j]) : 0.0f;
  }
}

#if defined(SCALES_STEPS)
// The step of a group times its factor. `section` is that of the scales or the minimums.
Real scaled_step(global const uchar *section, const Shape *s, long panel, long group, int lane) {
  global const uchar *const own = section + panel * s->step_bytes;
  global const half *const factors = (global const half *)own + group / s->factor_groups * 16;
  global const char *const steps = (global const char *)(own + s->factor_bytes) + group * 16;
#if defined(WIDE)
  return vload_half16(0, factors) * convert_float16(vload16(0, steps));
#else
  return vload_half(lane, factors) * (float)steps[lane];
#endif
}
#endif

// The scale, the zero point and the minimum of a group in row `lane` of a panel; with WIDE, of all 16 rows.
Real scale_of(global const uchar *base, const Shape *s, long panel, long group, int lane) {
#if defined(SCALES_STEPS)
  return scaled_step(base + s->scales, s, panel, group, lane);
#elif defined(SCALES_F16)
  const long first = (panel * s->groups + group) * s->scale_lanes;
  global const half *const halves = (global const half *)(base + s->scales) + first;
  if (s->scale_lanes == 1) return (Real)(vload_half(0, halves));
#if defined(WIDE)
  return vload_half16(0, halves);
#else
  return vload_half(lane, halves);
#endif
#else
  if (!s->quantized) return (Real)(1.0f);
  const long at = (panel * s->groups + group) * s->scale_lanes;
  global const uchar *const scales = base + s->scales;
  global const float *const floats = (global const float *)scales;
  // 2^-127 is a subnormal float: exponent 0, mantissa 2^22.
#if defined(WIDE)
  if (s->scale_exponent) {
    if (s->scale_lanes == 1) return (Real)(as_float(max((uint)scales[at] << 23, 0x00400000u)));
    return as_float16(max(convert_uint16(vload16(at / 16, scales)) << 23u, (uint16)0x00400000u));
  }
  if (s->scale_lanes == 1) return (Real)(floats[at]);
  return vload16(at / 16, floats);
#else
  const long own = at + (s->scale_lanes == 1 ? 0 : lane);
  if (s->scale_exponent) return as_float(max((uint)scales[own] << 23, 0x00400000u));
  return floats[own];
#endif
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
#if defined(MINIMUMS)
Real minimum_of(global const uchar *base, const Shape *s, long panel, long group, int lane) {
#if defined(SCALES_STEPS)
  const Real own = scaled_step(base + s->minimums, s, panel, group, lane);
  if (s->step_zero == 0) return own;
  return own + (Real)((float)s->step_zero) * scaled_step(base + s->scales, s, panel, group, lane);
#else
  global const float *const minimums = (global const float *)(base + s->minimums) + (panel * s->groups + group) * 16;
#if defined(WIDE)
  return vload16(0, minimums);
#else
  return minimums[lane];
#endif
#endif
}
#endif
