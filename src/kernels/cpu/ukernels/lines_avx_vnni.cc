// AVX2 with AVX-VNNI: each instruction adds four int8 products per lane.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_avx2.h"

namespace moracle::cpu {

const LineKernels kAvxVnniLines =
    line_kernels("avx_vnni", "avx_vnni", "avx_vnni_words", kAvxVnniCodes, false, true);

}  // namespace moracle::cpu

#endif
