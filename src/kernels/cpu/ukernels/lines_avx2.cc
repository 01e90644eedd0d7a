// AVX2 with FMA: int8 products in 16 bits, and f32 products.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_avx2.h"

namespace moracle::cpu {

const LineKernels kAvx2Lines =
    line_kernels("avx2", "avx2_maddubs", "avx2_madd", kAvx2Codes, true, true);

}  // namespace moracle::cpu

#endif
