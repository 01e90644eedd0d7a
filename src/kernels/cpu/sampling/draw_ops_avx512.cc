// DrawOps for AVX-512 (F, BW, VL, DQ). vector_ops_avx512.cc explains such files.
#if defined(__x86_64__)

#include "kernels/cpu/sampling/draw_ops_table.h"

namespace moracle::cpu {

constinit const DrawOps kAvx512DrawOps = draw_table("avx512");

}  // namespace moracle::cpu

#endif
