// Weights of layouts rows16 and columns16 as right operands of products: bf16 in registers. The options are those of
// matrix.cl.

// The sections of the layouts, in bytes. As Shape in matrix_linear.cc.
typedef struct {
  long num_experts, expert_bytes;
  long scales, zero_points, bias;
  long n, k, padded_rows, padded_cols;
  long scale_row, scale_group;        // distance of the scales of two rows (or blocks of rows), of two groups
  int block_rows, group_blocks;       // rows that share a scale; blocks of columns in a group
  int quantized, has_zero_points, has_bias;
} Shape;

#define BLOCK 32  // columns

// Floats whose high halves are the bf16 of two codes, as one word.
#define TO_PAIR(low, high) (int)((as_uint(high) & 0xffff0000u) | as_uint(low) >> 16)
// A float whose exponent is that of 2^23 holds an integer in its lowest bits.
#define FROM_BITS(bits, offset) (as_float((bits) | 0x4b000000u) - (8388608.0f + (offset)))

#if defined(WEIGHT_I4)
#define CODE(bits, zero) FROM_BITS(bits, 8.0f + (zero))
#elif defined(WEIGHT_E2M1)
#define CODE(bits, zero) (as_float(((bits) & 8u) << 28 | ((bits) & 7u) << 22) * 0x1p126f)
#elif defined(WEIGHT_I8)
#define CODE(bits, zero) FROM_BITS((bits) ^ 128u, 128.0f + (zero))
#elif defined(WEIGHT_E4M3)
#define CODE(bits, zero) (as_float(((bits) & 128u) << 24 | ((bits) & 127u) << 20) * 0x1p120f)
#else
#define CODE(bits, zero) as_float((bits) << 16)
#endif

// Codes of 16 columns, half a block, become the right operands of TILES products.
#if defined(WEIGHT_I4) || defined(WEIGHT_E2M1)
// Lane l has rows l, LANES + l, ... of weights.
#define OFFSET(tile, lane) ((tile) * LANES + (lane))

void load_right(global const uchar *base, const Shape *s, const long *rows, long half_block, const float *zeros,
                int8 *right) {
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const uint2 words = ((global const uint2 *)(base + rows[t] * (s->padded_cols / 2)))[half_block];
    int *const pairs = (int *)&right[t];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint byte = (j < 4 ? words.x : words.y) >> (8 * (j % 4));
      pairs[j] = TO_PAIR(CODE(byte & 15u, zeros[t]), CODE(byte >> 4 & 15u, zeros[t]));
    }
  }
}
#else
// Lane l has rows TILES * l, TILES * l + 1, ... of weights: neighbours in memory.
#define OFFSET(tile, lane) ((lane) * TILES + (tile))
// Two neighbours are loaded as one integer: vectors of bytes cost moves.
#if TILES != 2
#error "TILES must be 2"
#endif
#if defined(WEIGHT_BF16)
typedef uint Neighbours;
#else
typedef ushort Neighbours;
#endif

void load_right(global const uchar *base, const Shape *s, const long *rows, long half_block, const float *zeros,
                int8 *right) {
  const long step = s->padded_rows * (long)sizeof(Neighbours) / 2;
  global const uchar *at = base + half_block * 16 * step + rows[0] * (long)sizeof(Neighbours) / 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint low = *(global const Neighbours *)at, high = *(global const Neighbours *)(at + step);
    at += 2 * step;
#if defined(WEIGHT_BF16)
    ((int *)&right[0])[j] = (int)(high << 16 | (low & 0xffffu));
    ((int *)&right[1])[j] = (int)((high & 0xffff0000u) | low >> 16);
#else
    ((int *)&right[0])[j] = TO_PAIR(CODE(low & 255u, zeros[0]), CODE(high & 255u, zeros[0]));
    ((int *)&right[1])[j] = TO_PAIR(CODE(low >> 8, zeros[1]), CODE(high >> 8, zeros[1]));
#endif
  }
}
#endif

// Place of the scale and the zero point of a row's first group.
int scale_row_of(const Shape *s, long row) {
  return (int)min(row, s->n - 1) / s->block_rows * (int)s->scale_row;
}
float scale_at(global const uchar *base, const Shape *s, long place) {
  return ((global const float *)(base + s->scales))[place];
}
float zero_at(global const uchar *base, const Shape *s, long place) {
  return s->has_zero_points ? (float)((global const char *)(base + s->zero_points))[place] : 0.0f;
}
