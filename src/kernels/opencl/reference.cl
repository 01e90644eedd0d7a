// Backend opencl-reference: y[r, n] = sum over k of x[row_index[r], k] * w[e(r), n, k] + bias[e(r), n].
// A work-item computes one output from canonical weights. Compiled once for each weight type:
//   -D WEIGHT_BF16, _F16, _F32, _E4M3, _I8, _I4 or _E2M1
//   -D WHOLE: codes are multiplied as integers, and each group's exact sum is scaled
//   -D X_CODES: activations are codes of one byte, int8 (-D X_I8) or e4m3
#include "elements.cl"
#include "e4m3.cl"
#include "experts.cl"
#include "numbers.cl"

// The shape of the matrices and the places of their sections, in bytes. As Shape in opencl_reference.cc.
typedef struct {
  long num_experts, expert_bytes, row_bytes;
  long codes, scales, zero_points, minimums, group_index, bias;  // has_* tell whether the last four exist
  long n, k, group_rows, group_cols, scale_cols;
  int quantized, has_zero_points, has_minimums, has_group_index, has_bias;
} Shape;

#if defined(WEIGHT_BF16)
#define CODE(row, i) bf16_to_float(((global const ushort *)(row))[i])
#elif defined(WEIGHT_F16)
#define CODE(row, i) f16_to_float(((global const ushort *)(row))[i])
#elif defined(WEIGHT_F32)
#define CODE(row, i) (((global const float *)(row))[i])
#elif defined(WEIGHT_E4M3)
#define CODE(row, i) e4m3_to_float((row)[i])
#elif defined(WEIGHT_I8)
#define INTEGER(row, i) ((int)(char)(row)[i])
#elif defined(WEIGHT_I4)
#define NIBBLE(row, i) ((row)[(i) / 2] >> (4 * ((i) % 2)) & 15)
#define INTEGER(row, i) ((NIBBLE(row, i) ^ 8) - 8)
#elif defined(WEIGHT_E2M1)
#define NIBBLE(row, i) ((row)[(i) / 2] >> (4 * ((i) % 2)) & 15)
#define CODE(row, i) e2m1_to_float((uchar)NIBBLE(row, i))
#define INTEGER(row, i) ((int)(2 * CODE(row, i)))  // in halves: UNIT
#define UNIT 0.5f
#endif
#if !defined(CODE)
#define CODE(row, i) ((float)INTEGER(row, i))
#endif
#if !defined(UNIT)
#define UNIT 1.0f
#endif

kernel void reference_linear(global const uchar *weights, const Shape s, MATRIX(x), global const float *x_scales,
                             const long x_num_scales, const long x_group_cols, global const int *row_index,
                             global const int *offsets, MATRIX(y), const long num_rows) {
  const long tiles = (s.n + get_local_size(0) - 1) / get_local_size(0);
  for (long group = get_group_id(0); group < num_rows * tiles; group += get_num_groups(0)) {
    const long r = group / tiles, n = group % tiles * get_local_size(0) + get_local_id(0);
    const long e = offsets ? expert_of(offsets, s.num_experts, r) : 0;
    if (n >= s.n || e == s.num_experts) continue;
    global const uchar *const base = weights + e * s.expert_bytes;
    global const uchar *const row = base + s.codes + n * s.row_bytes;
    global const float *const scales = (global const float *)(base + s.scales) + n / s.group_rows * s.scale_cols;
    global const char *const zeros = (global const char *)(base + s.zero_points) + n / s.group_rows * s.scale_cols;
    global const float *const minimums = (global const float *)(base + s.minimums) + n / s.group_rows * s.scale_cols;
    global const int *const group_index = (global const int *)(base + s.group_index);
    const long source = row_index ? row_index[r] : r;
#if defined(X_CODES)
    global const uchar *const codes = (global const uchar *)x + source * x_stride;
    x_scales += source * x_num_scales;
#endif
    float sum = 0;
#if defined(WHOLE)
    for (long first = 0, g = 0; first < s.k; first += s.group_cols, ++g) {
      const int zero = s.has_zero_points ? zeros[g] : 0;
      int whole = 0;
      const long last = min(s.k, first + s.group_cols);
      for (long k = first; k < last; ++k) whole += (int)(char)codes[k] * (INTEGER(row, k) - zero);
      sum += (float)whole * UNIT * x_scales[0] * scales[g];
    }
#else
    for (long k = 0; k < s.k; ++k) {
      float w = CODE(row, k);
      if (s.quantized) {
        const long g = s.has_group_index ? group_index[k] : k / s.group_cols;
        w = (w - (s.has_zero_points ? (float)zeros[g] : 0.0f)) * scales[g] - (s.has_minimums ? minimums[g] : 0.0f);
      }
#if defined(X_I8)
      const float a = (float)(char)codes[k] * x_scales[k / x_group_cols];
#elif defined(X_CODES)
      const float a = e4m3_to_float(codes[k]) * x_scales[k / x_group_cols];
#else
      const float a = LOAD(x, source, k);
#endif
      sum += a * w;
    }
#endif
    if (s.has_bias) sum += ((global const float *)(base + s.bias))[n];
    STORE(y, r, n, sum);
#if defined(X_CODES)
    x_scales -= source * x_num_scales;
#endif
  }
}
