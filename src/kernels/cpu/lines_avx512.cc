// AVX-512 with VNNI: products of int8 and of f32.

#if defined(__x86_64__)

#include "kernels/cpu/lines.inc"

namespace moracle::cpu {

const LineKernels kAvx512Lines = {.instructions = {"avx512_vnni", nullptr, "avx512"},
                                  .row_block = 8,
                                  .int8 = multiply<Int8Dot>,
                                  .int8_by_i4 = multiply_codes<I4Codes>,
                                  .int8_by_e2m1 = multiply_codes<E2M1Codes>,
                                  .f32 = multiply<F32Dot>,
                                  .finish = finish_rows};

}  // namespace moracle::cpu

#endif
