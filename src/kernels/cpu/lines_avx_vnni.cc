// AVX2 with AVX-VNNI: four products of int8 at once.

#if defined(__x86_64__)

#include "kernels/cpu/lines_avx2.inc"

namespace moracle::cpu {

const LineKernels kAvxVnniLines = {.instructions = {"avx_vnni", nullptr, "avx2"},
                                   .decoders = &kAvx2Decoders,
                                   .rows = &kAvx2Rows,
                                   .codes = &kAvxVnniCodes,
                                   .row_block = kMaxBlockRows,
                                   .code_block = 6,
                                   .few_rows = 12,
                                   .int8 = multiply<Int8Dot>,
                                   .f32 = multiply<F32Dot>,
                                   .finish = finish_rows};

}  // namespace moracle::cpu

#endif
