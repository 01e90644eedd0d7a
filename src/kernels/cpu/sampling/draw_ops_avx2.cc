// DrawOps for AVX2. vector_ops_avx2.cc explains such files.
#if defined(__x86_64__)

#include "kernels/cpu/sampling/draw_ops_table.h"

namespace moracle::cpu {

constinit const DrawOps kAvx2DrawOps = draw_table("avx2");

}  // namespace moracle::cpu

#endif
