// VectorOps for AVX2, FMA and F16C. cmake/Kernels.cmake builds only this file with their flags.
// Only a CPU that reports them may call its functions; vector.h explains the consequences.
#if defined(__x86_64__)

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "vector_ops_avx2.cc needs -mavx2 -mfma -mf16c"
#endif

#include "kernels/cpu/simd/vector_ops_table.h"

namespace moracle::cpu {

constinit const VectorOps kAvx2VectorOps = table("avx2");

}  // namespace moracle::cpu

#endif
