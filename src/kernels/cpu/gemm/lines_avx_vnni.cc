// AVX2 with AVX-VNNI: four products of int8 at once.

#if defined(__x86_64__)

#include "kernels/cpu/gemm/lines_avx2.h"

namespace moracle::cpu {

const LineKernels kAvxVnniLines = line_kernels("avx_vnni", kAvxVnniCodes);

}  // namespace moracle::cpu

#endif
