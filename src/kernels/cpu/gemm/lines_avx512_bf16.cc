// AVX-512 with VNNI and BF16.

#if defined(__x86_64__)

#include "kernels/cpu/gemm/lines_avx512.h"

namespace moracle::cpu {

const LineKernels kAvx512Bf16Lines = {.instructions = {"avx512_vnni", "avx512_bf16", "avx512"},
                                      .decoders = &kAvx512Decoders,
                                      .rows = &kAvx512Rows,
                                      .codes = &kAvx512Codes,
                                      .row_block = 8,
                                      .codes_for_all_rows = true,
                                      .int8 = multiply<Int8Dot>,
                                      .bf16 = multiply<Bf16Dot>,
                                      .f32 = multiply<F32Dot>,
                                      .finish = finish_rows};

}  // namespace moracle::cpu

#endif
