// AVX-512 with VNNI: int8 and f32 products.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_avx512.h"

namespace moracle::cpu {

const LineKernels kAvx512Lines = {.instructions = {"avx512_vnni", nullptr, "avx512"},
                                  .decoders = &kAvx512Decoders,
                                  .rows = &kAvx512Rows,
                                  .codes = &kAvx512Codes,
                                  .row_block = 8,
                                  .lines_ahead = 64,
                                  .lines_ahead_16 = 64,
                                  .codes_for_all_rows = true,
                                  .floats_in_parts = true,
                                  .int8 = multiply<Int8Dot>,
                                  .f32 = multiply<F32Dot>};

}  // namespace moracle::cpu

#endif
