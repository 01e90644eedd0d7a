// Weights of layouts rows16 and columns16 as right operands of products, in registers. The options are those of
// matrix.cl.

// The sections of the layouts, in bytes. As Shape in matrix_linear.cc.
typedef struct {
  long num_experts, expert_bytes;
  long scales, zero_points, bias;
  long n, k, padded_rows, padded_cols;
  long scale_row, scale_group;        // distance of the scales of two rows (or blocks of rows), of two groups
  int block_rows, group_blocks;       // rows that share a scale; blocks of columns in a group
  int quantized, has_zero_points, has_bias;
  int x_group_blocks;                 // blocks that share a scale of an activation row
} Shape;

#define BLOCK 32  // columns
#define PRODUCTS (BLOCK / DEPTH)

// TERMS bf16 hold a weight, as their sum.
#if defined(WEIGHT_F16)
#define TERMS 2
#else
#define TERMS 1
#endif

// Floats whose high halves are the bf16 of two codes, as one word.
#define TO_PAIR(low, high) (int)((as_uint(high) & 0xffff0000u) | as_uint(low) >> 16)
// A float whose exponent is that of 2^23 holds an integer in its lowest bits.
#define FROM_BITS(bits, offset) (as_float((bits) | 0x4b000000u) - (8388608.0f + (offset)))

#if defined(WEIGHT_I4)
#define CODE(bits, zero) FROM_BITS(bits, 8.0f + (zero))
#elif defined(WEIGHT_E2M1)
#define CODE(bits, zero) (as_float((uint)((int)((bits) << 28) >> 6) & 0x81c00000u) * 0x1p126f)
#elif defined(WEIGHT_I8)
#define CODE(bits, zero) FROM_BITS((bits) ^ 128u, 128.0f + (zero))
#elif defined(WEIGHT_E4M3)
#define CODE(bits, zero) E4M3_REAL(bits)
#elif defined(WEIGHT_F16)
#define CODE(bits, zero) (as_float(((bits) & 32768u) << 16 | ((bits) & 32767u) << 13) * 0x1p112f)
#endif

// Product p of a block, DEPTH columns: their codes become the right operands of TILES tiles.
#if defined(WEIGHT_I4) || defined(WEIGHT_E2M1)
// Lane l has rows l, LANES + l, ... of weights.
#define OFFSET(tile, lane) ((tile) * LANES + (lane))

#if defined(INTEGERS)
// Converts four 4-bit codes to four int8 and subtracts 8 and the zero point. Bit 7 of each byte stops the borrow.
int four_of(uint codes, uint offset) {
  const uint halves = (codes | codes << 8) & 0x00ff00ffu, bytes = (halves | halves << 4) & 0x0f0f0f0fu;
  return (int)(((bytes | 0x80808080u) - offset) ^ 0x80808080u);
}

void load_right(global const uchar *base, const Shape *s, const long *rows, long block, int p, const float *zeros,
                int8 right[TERMS][TILES]) {
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const uint4 loaded = ((global const uint4 *)(base + rows[t] * (s->padded_cols / 2)))[block];
    const uint words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    const uint offset = (uint)(8 + (int)zeros[t]) * 0x01010101u;
    int *const fours = (int *)&right[0][t];
#pragma unroll
    for (int j = 0; j < 8; ++j) fours[j] = four_of(words[j / 2] >> (16 * (j % 2)) & 0xffffu, offset);
  }
}
#else
void load_right(global const uchar *base, const Shape *s, const long *rows, long block, int p, const float *zeros,
                int8 right[TERMS][TILES]) {
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const uint2 words = ((global const uint2 *)(base + rows[t] * (s->padded_cols / 2)))[PRODUCTS * block + p];
    int *const pairs = (int *)&right[0][t];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint byte = (j < 4 ? words.x : words.y) >> (8 * (j % 4));
      pairs[j] = TO_PAIR(CODE(byte & 15u, zeros[t]), CODE(byte >> 4 & 15u, zeros[t]));
    }
  }
}
#endif
#else
// Lane l has rows TILES * l, TILES * l + 1, ... of weights: neighbours in memory.
#define OFFSET(tile, lane) ((lane) * TILES + (tile))
// Two neighbours are loaded as one integer: vectors of bytes cost moves.
#if TILES != 2
#error "TILES must be 2"
#endif
#if defined(WEIGHT_BF16) || defined(WEIGHT_F16)
typedef uint Neighbours;
#else
typedef ushort Neighbours;
#endif

void load_right(global const uchar *base, const Shape *s, const long *rows, long block, int p, const float *zeros,
                int8 right[TERMS][TILES]) {
  const long step = s->padded_rows * (long)sizeof(Neighbours) / 2;
  global const uchar *at = base + (block * BLOCK + p * DEPTH) * step + rows[0] * (long)sizeof(Neighbours) / 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint low = *(global const Neighbours *)at, high = *(global const Neighbours *)(at + step);
#if defined(INTEGERS)
    const uint third = *(global const Neighbours *)(at + 2 * step), last = *(global const Neighbours *)(at + 3 * step);
    ((int *)&right[0][0])[j] = (int)((low & 255u) | (high & 255u) << 8 | (third & 255u) << 16 | last << 24);
    ((int *)&right[0][1])[j] = (int)(low >> 8 | (high & 0xff00u) | (third & 0xff00u) << 8 | (last & 0xff00u) << 16);
#elif defined(WEIGHT_BF16)
    ((int *)&right[0][0])[j] = (int)(high << 16 | (low & 0xffffu));
    ((int *)&right[0][1])[j] = (int)((high & 0xffff0000u) | low >> 16);
#elif defined(WEIGHT_F16)
    // The first 8 significant bits of a weight, then the last 3.
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const float first = CODE(low >> (16 * t), 0), second = CODE(high >> (16 * t), 0);
      const float first_rest = first - as_float(as_uint(first) & 0xffff0000u);
      const float second_rest = second - as_float(as_uint(second) & 0xffff0000u);
      ((int *)&right[0][t])[j] = TO_PAIR(first, second);
      ((int *)&right[TERMS - 1][t])[j] = TO_PAIR(first_rest, second_rest);
    }
#else
    ((int *)&right[0][0])[j] = TO_PAIR(CODE(low & 255u, zeros[0]), CODE(high & 255u, zeros[0]));
    ((int *)&right[0][1])[j] = TO_PAIR(CODE(low >> 8, zeros[1]), CODE(high >> 8, zeros[1]));
#endif
    at += DEPTH / 8 * step;
  }
}
#endif

// Index of the scale and the zero point of a row's first group.
int scale_row_of(const Shape *s, long row) {
  return (int)min(row, s->n - 1) / s->block_rows * (int)s->scale_row;
}
float scale_at(global const uchar *base, const Shape *s, long index) {
  return ((global const float *)(base + s->scales))[index];
}
float zero_at(global const uchar *base, const Shape *s, long index) {
  return s->has_zero_points ? (float)((global const char *)(base + s->zero_points))[index] : 0.0f;
}
