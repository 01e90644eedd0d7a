// Quantizes activations to the same bits as quant/activation.h.
#include "elements.cl"
#include "e4m3.cl"
#include "experts.cl"

#define INFINITY_BITS 0x7f800000u

// The values of Codes in ops_quantize.cc.
#define INT8 0
#define FP8 1
#define MXFP8 2

// Same as scale_for; `largest` holds the bits of a finite magnitude. The power of two of mxfp8 comes from these bits
// alone: a division may round differently or lose subnormals on some devices.
float scale_of(int codes, uint largest) {
  if (codes == INT8) return fmax(as_float(largest), 1e-10f) / 127.0f;
  if (codes == FP8) return fmax(as_float(largest), 1e-10f) / 448.0f;
  // 448 is 1.75 * 2^8: mantissas above 1.75 need the next power.
  const uint exponent = (largest >> 23) + ((largest & 0x7fffffu) > 0x600000u ? 1u : 0u);
  if (exponent > 8) return as_float((exponent - 8) << 23);
  // Quotients below 2^-126 get this power. Those that round to 0 get 2^-127.
  return as_float(largest > 224 ? 0x00800000u : 0x00400000u);
}

uchar code_of(int codes, float value, float scale) {
  if (codes == INT8) return as_uchar((char)fmin(fmax(rint(value / scale), -128.0f), 127.0f));
  if (codes == FP8) return float_to_e4m3(value / scale);
  // The inverse of a power of two is exact, and never subnormal: scales of finite numbers stay below 2^121.
  return float_to_e4m3(value * as_float(0x7f000000u - (as_uint(scale) & INFINITY_BITS)));
}

// Stores the code, or its dequantized value if `to` holds floats.
void put(int codes, global void *to, long stride, int dtype, int to_floats, long r, long c, uchar code, float scale) {
  if (to_floats)
    store_element(to, dtype, r * stride + c, (codes == INT8 ? (float)as_char(code) : e4m3_to_float(code)) * scale);
  else
    ((global uchar *)to)[r * stride + c] = code;
}

// The largest value of the work-group. All work-items must call it.
uint largest_of_group(uint value, local uint *partial) {
  const uint id = (uint)get_local_id(0);
  partial[id] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint count = (uint)get_local_size(0); count > 1; count = (count + 1) / 2) {
    const uint half_count = (count + 1) / 2;
    if (id + half_count < count) partial[id] = max(partial[id], partial[id + half_count]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const uint largest = partial[0];
  barrier(CLK_LOCAL_MEM_FENCE);  // before the next call writes
  return largest;
}

// A work-group handles each group of `group` columns of a row.
kernel void quantize(MATRIX(from), const int codes, const long group, const long groups, MATRIX(to),
                     const int to_floats, global float *scales, const long num_scales, const long rows,
                     const long from_cols, const long to_cols) {
  local uint partial[256];
  for (long b = get_group_id(0); b < rows * groups; b += get_num_groups(0)) {
    const long r = b / groups, g = b % groups;
    const long begin = g * group, end = min(begin + group, from_cols);
    // Compare magnitudes by their bits, which have the same order. Infinity and NaN are the largest.
    uint largest = 0;
    for (long c = begin + get_local_id(0); c < end; c += get_local_size(0))
      largest = max(largest, as_uint(LOAD(from, r, c)) & 0x7fffffffu);
    largest = largest_of_group(largest, partial);
    const bool finite = largest < INFINITY_BITS;
    const float scale = finite ? scale_of(codes, largest) : as_float(0x7fc00000u);
    for (long c = begin + get_local_id(0); c < end; c += get_local_size(0)) {
      const uchar code = finite ? code_of(codes, LOAD(from, r, c), scale) : (uchar)0;
      put(codes, to, to_stride, to_dtype, to_floats, r, c, code, scale);
    }
    if (get_local_id(0) == 0) scales[r * num_scales + g] = scale;
    if (g == groups - 1) {
      for (long c = from_cols + get_local_id(0); c < to_cols; c += get_local_size(0))
        put(codes, to, to_stride, to_dtype, to_floats, r, c, 0, 0.0f);
    }
  }
}

// A work-group handles each row, with the stored scale of its expert.
kernel void quantize_static(MATRIX(from), global const int *row_index, global const int *offsets,
                            const long num_experts, global const float *expert_scales, MATRIX(to), const int to_floats,
                            global float *scales, const long rows, const long from_cols, const long to_cols) {
  for (long r = get_group_id(0); r < rows; r += get_num_groups(0)) {
    const long e = offsets ? expert_of(offsets, num_experts, r) : 0;
    if (e >= num_experts) return;  // rows are in order: later rows have no expert either
    const float scale = expert_scales[e];
    const long source = row_index ? row_index[r] : r;
    for (long c = get_local_id(0); c < to_cols; c += get_local_size(0)) {
      const uchar code = c < from_cols ? code_of(FP8, LOAD(from, source, c), scale) : (uchar)0;
      put(FP8, to, to_stride, to_dtype, to_floats, r, c, code, c < from_cols ? scale : 0.0f);
    }
    if (get_local_id(0) == 0) scales[r] = scale;
  }
}
