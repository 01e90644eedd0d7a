// Few rows times codes for AVX-VNNI.

#if defined(__x86_64__)

#include "kernels/cpu/decode/lines_codes_256.h"

namespace moracle::cpu {

const CodeKernels kAvxVnniCodes = kCodes;

}  // namespace moracle::cpu

#endif
