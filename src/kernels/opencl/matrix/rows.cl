// Rows of activations as left operands of products. The options are those of matrix.cl.

// The lowest byte as e4m3: one shift moves sign, exponent and mantissa to their bits in a float, and the multiplication
// corrects the exponent.
#define E4M3_REAL(code) (as_float((uint)((int)(char)(code) << 20) & 0x87f00000u) * 0x1p120f)

#if defined(X_BF16)
typedef ushort X;
#else
typedef uchar X;
#endif

// The codes that a lane holds of a row.
#if COLS == 1
typedef X Codes;
#elif COLS == 2 && defined(X_BF16)
typedef uint Codes;
#elif COLS == 2
typedef ushort Codes;
#else
typedef uint Codes;
#endif

#if defined(WHOLE_BLOCKS)
#define IS_WHOLE(k, end) 1
#else
#define IS_WHOLE(k, end) ((k) + DEPTH <= (end))
#endif

// The number of a code of one byte. Exact in bf16.
#if defined(X_E4M3)
#define X_REAL(code) E4M3_REAL(code)
#elif defined(X_I8)
#define X_REAL(code) ((float)(char)(code))
#endif
Fragment operand_of(Codes codes) {
#if defined(X_BF16) || defined(INTEGERS)
  return (Fragment)codes;
#elif COLS == 1
  return (Fragment)(as_uint(X_REAL(codes)) >> 16);
#else
  return (Fragment)((as_uint(X_REAL(codes >> 8)) & 0xffff0000u) | as_uint(X_REAL(codes)) >> 16);
#endif
}

// Columns [k, k + DEPTH) of 8 rows of activations, zeros from column `end` on. If `aligned`, one load reads a lane's.
Left load_left(global const X *const *x, long k, long end, int aligned) {
  const int whole = IS_WHOLE(k, end);
  const long own = k + COLS * get_sub_group_local_id();
  Left left;
  Fragment *const fragments = (Fragment *)&left;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    global const X *const at = x[m] + own;
    Codes codes = 0;
    if (whole && (COLS == 1 || aligned)) {
      codes = *(global const Codes *)at;
    } else {
#pragma unroll
      for (int c = 0; c < COLS; ++c)
        codes |= (Codes)(whole || own + c < end ? at[c] : 0) << (c * 8 * (int)sizeof(X));
    }
    fragments[m] = operand_of(codes);
  }
  return left;
}

// The scales of 8 rows. Lane l has loaded the scale of row l % 8, which takes fewer registers than 8 pointers.
float8 scales_of(float own) {
  float8 out;
  float *const each = (float *)&out;
#pragma unroll
  for (int m = 0; m < 8; ++m) each[m] = sub_group_broadcast(own, m);
  return out;
}
