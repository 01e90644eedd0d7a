// Gathers activation columns into the order of their expert's packed weights.
#include "elements.cl"
#include "experts.cl"

// Rows i of `to` are counted from first_row. `orders` holds each expert's order, order_bytes apart. A work-group finds
// the expert of a row once for its tile of the columns.
#define GATHER_COLUMNS(kernel_name, Value)                                                                          \
  kernel void kernel_name(MATRIX(from), global const float *from_scales, global const int *row_index,               \
                          global const int *offsets, const long first_row, global const char *orders,               \
                          const long order_bytes, const long num_cols, const long num_experts, MATRIX(to),          \
                          global float *to_scales, const long num_scales, const long rows, const long cols) {       \
    const long tiles = (cols + TILE_COLS - 1) / TILE_COLS;                                                                 \
    for (long tile = get_group_id(0); tile < rows * tiles; tile += get_num_groups(0)) {                         \
      const long i = tile / tiles, first = tile % tiles * TILE_COLS, row = first_row + i;                           \
      const long expert = offsets ? expert_of(offsets, num_experts, row) : 0;                                       \
      if (expert >= num_experts) return; /* rows past the last offset have no expert */                             \
      const long source = row_index ? row_index[row] : i;                                                           \
      global const int *order = (global const int *)(orders + expert * order_bytes);                                \
      global const Value *in = (global const Value *)from + source * from_stride;                                   \
      global Value *out = (global Value *)to + i * to_stride;                                                       \
      for (long c = first + get_local_id(0); c < min(cols, first + TILE_COLS); c += get_local_size(0)) {                \
        out[c] = c < num_cols ? in[order[c]] : (Value)0;                                                            \
        if (c < num_scales) to_scales[i * num_scales + c] = from_scales[source * num_scales + c];                   \
      }                                                                                                             \
    }                                                                                                               \
  }

GATHER_COLUMNS(gather_columns_8, uchar)
GATHER_COLUMNS(gather_columns_16, ushort)
GATHER_COLUMNS(gather_columns_32, uint)
