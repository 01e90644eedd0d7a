// Matrix engines of Intel GPUs: the built-ins of cl_intel_subgroup_matrix_multiply_accumulate for bf16 and, with -D
// INTEGERS, for int8, with subgroups of LANES = 8 or 16. -D EMULATED replaces them by plain OpenCL C, for devices that
// only have subgroups.
//
//   acc[m] of lane l   +=  sum over k of A[m][k] * B[k][l]     m < 8, k < DEPTH
//   a    element m of lane l holds A[m][k] for the COLS columns from k = COLS * l on, the first in the lowest bits
//   b    element j of lane l holds B[k][l] for the DEPTH / 8 columns from k = DEPTH / 8 * j on, likewise
#if defined(INTEGERS)
#define DEPTH 32
typedef int8 Sums;
#else
#define DEPTH 16
typedef float8 Sums;
#endif
#define COLS (DEPTH / LANES)

#define SUBGROUP __attribute__((intel_reqd_sub_group_size(LANES)))
#if LANES == 16
typedef short Fragment;   // the columns of a row of A that a lane holds
typedef short8 Left;  // of 8 rows
#else
typedef int Fragment;
typedef int8 Left;
#endif

#if defined(EMULATED)
#if defined(INTEGERS)
typedef int Product;
int product_of(uint a, uint b) {
  int sum = 0;
  for (int i = 0; i < 32; i += 8) sum += (int)(char)(a >> i) * (int)(char)(b >> i);
  return sum;
}
#else
typedef float Product;
float product_of(uint a, uint b) {
  return as_float(a << 16) * as_float(b << 16) + as_float(a & 0xffff0000u) * as_float(b & 0xffff0000u);
}
#endif
Sums multiply_add(Left a, int8 b, Sums acc) {
  const Fragment *const left = (const Fragment *)&a;
  const uint *const right = (const uint *)&b;
  Product *const sums = (Product *)&acc;
  for (int m = 0; m < 8; ++m) {
    for (int j = 0; j < 8; ++j) {
#if LANES == 16
      const uint low = (uint)(ushort)sub_group_broadcast((int)left[m], 2 * j);
      const uint word = (uint)sub_group_broadcast((int)left[m], 2 * j + 1) << 16 | low;
#else
      const uint word = (uint)sub_group_broadcast(left[m], j);
#endif
      sums[m] += product_of(word, right[j]);
    }
  }
  return acc;
}
#elif defined(INTEGERS)
int8 __attribute__((overloadable)) intel_sub_group_i8_i8_matrix_mad_k32(Left a, int8 b, int8 acc);
#define multiply_add intel_sub_group_i8_i8_matrix_mad_k32
#else
float8 __attribute__((overloadable)) intel_sub_group_bf16_bf16_matrix_mad_k16(Left a, int8 b, float8 acc);
#define multiply_add intel_sub_group_bf16_bf16_matrix_mad_k16
#endif
