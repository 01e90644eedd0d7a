// Loads and stores of activation elements. The conversions are those of base/scalar.h, bit by bit.
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable

// The values of DType in moracle/base.h.
#define F32 0
#define F16 1
#define BF16 2

// A Matrix as kernel arguments; the row stride is in elements.
#define MATRIX(name) global void *name, const long name##_stride, const int name##_dtype
#define LOAD(name, row, col) load_element(name, name##_dtype, (row) * name##_stride + (col))
#define STORE(name, row, col, value) store_element(name, name##_dtype, (row) * name##_stride + (col), value)

float bf16_to_float(ushort bits) { return as_float((uint)bits << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
ushort float_to_bf16(float value) {
  const uint u = as_uint(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (ushort)((u >> 16) | 0x40u);
  return (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f16_to_float(ushort bits) {
  const uint sign = (uint)(bits & 0x8000u) << 16;
  const uint exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 31) return as_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return as_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  return as_float(as_uint((float)mantissa * 0x1p-24f) | sign);
}

// Rounds to nearest, ties to even; overflows to infinity; NaN stays NaN.
ushort float_to_f16(float value) {
  const uint u = as_uint(value), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (ushort)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (ushort)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) return (ushort)(sign | (as_uint(as_float(magnitude) + 0.5f) - 0x3f000000u));
  const uint rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return (ushort)(sign | ((rounded - 0x38000000u) >> 13));
}

float load_element(global const void *data, int dtype, long at) {
  if (dtype == F32) return ((global const float *)data)[at];
  const ushort bits = ((global const ushort *)data)[at];
  return dtype == BF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store_element(global void *data, int dtype, long at, float value) {
  if (dtype == F32)
    ((global float *)data)[at] = value;
  else
    ((global ushort *)data)[at] = dtype == BF16 ? float_to_bf16(value) : float_to_f16(value);
}

// Work-groups step over the rows and column ranges of a matrix: for (r, c) of [rows, cols], c in this work-item's
// columns. A work-group processes TILE_COLS columns at a time.
#define TILE_COLS 1024
#define FOR_EACH_ELEMENT(r, c, rows, cols)                                                                \
  for (long tile_ = get_group_id(0), tiles_ = ((cols) + TILE_COLS - 1) / TILE_COLS; tile_ < (rows) * tiles_; \
       tile_ += get_num_groups(0))                                                                      \
    for (long r = tile_ / tiles_, c = tile_ % tiles_ * TILE_COLS + get_local_id(0),                      \
              last_ = min((long)(cols), tile_ % tiles_ * TILE_COLS + TILE_COLS);                               \
         c < last_; c += get_local_size(0))

// Where kernels report errors: DeviceErrorCell of device_error.h.
typedef struct {
  ulong first;
  long limit, per_token;
} ErrorCell;

// Keeps the error with the lowest index.
void report(volatile global ErrorCell *cell, long index, int value, long limit, long per_token) {
  atom_min(&cell->first, (ulong)index << 32 | (uint)value);
  cell->limit = limit;  // all work-items of a kernel write the same value
  cell->per_token = per_token;
}
