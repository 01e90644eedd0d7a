// Few rows times codes for AVX-VNNI.

#if defined(__x86_64__)

#include "kernels/cpu/lines_codes_avx2.inc"

namespace moracle::cpu {

const CodeKernels kAvxVnniCodes = kCodes;

}  // namespace moracle::cpu

#endif
