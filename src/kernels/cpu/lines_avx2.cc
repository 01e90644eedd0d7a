// AVX2 with FMA: products of int8 in 16 bits, and of f32.

#if defined(__x86_64__)

#include "kernels/cpu/lines_avx2.inc"

namespace moracle::cpu {

const LineKernels kAvx2Lines = {.instructions = {"avx2", nullptr, "avx2"},
                                .decoders = &kAvx2Decoders,
                                .rows = &kAvx2Rows,
                                .codes = &kAvx2Codes,
                                .row_block = kMaxBlockRows,
                                .code_block = 6,
                                .few_rows = 12,
                                .int8 = multiply<Int8Dot>,
                                .f32 = multiply<F32Dot>,
                                .finish = finish_rows};

}  // namespace moracle::cpu

#endif
