// Matrix engines of Intel GPUs: the built-ins of cl_intel_subgroup_matrix_multiply_accumulate for bf16, with
// subgroups of LANES = 8 or 16. With -D EMULATED they are plain OpenCL C, for devices that have subgroups only.
//
//   acc[m] of lane l   +=  sum over k of A[m][k] * B[k][l]     m < 8, k < 16
//   a    LANES 16: element m of lane l is A[m][l];  LANES 8: its two halves are A[m][2 l] and A[m][2 l + 1]
//   b    element j of lane l holds B[2 j][l] and B[2 j + 1][l], the first in the low half

#define SUBGROUP __attribute__((intel_reqd_sub_group_size(LANES)))
#if LANES == 16
typedef short Pairs;   // the part of a row of A that a lane holds
typedef short8 Left;   // of 8 rows
#else
typedef int Pairs;
typedef int8 Left;
#endif

#if defined(EMULATED)
float8 multiply_add(Left a, int8 b, float8 acc) {
  const Pairs *const left = (const Pairs *)&a;
  const uint *const right = (const uint *)&b;
  float *const sums = (float *)&acc;
  for (int m = 0; m < 8; ++m) {
    for (int j = 0; j < 8; ++j) {
#if LANES == 16
      const uint low = (uint)(ushort)sub_group_broadcast((int)left[m], 2 * j);
      const uint pair = (uint)sub_group_broadcast((int)left[m], 2 * j + 1) << 16 | low;
#else
      const uint pair = (uint)sub_group_broadcast(left[m], j);
#endif
      sums[m] += as_float(pair << 16) * as_float(right[j] << 16);
      sums[m] += as_float(pair & 0xffff0000u) * as_float(right[j] & 0xffff0000u);
    }
  }
  return acc;
}
#else
float8 __attribute__((overloadable)) intel_sub_group_bf16_bf16_matrix_mad_k16(Left a, int8 b, float8 acc);
#define multiply_add intel_sub_group_bf16_bf16_matrix_mad_k16
#endif
