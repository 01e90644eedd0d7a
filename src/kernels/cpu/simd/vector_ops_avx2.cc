// VectorOps for AVX2, FMA and F16C. Only this file is built with their flags (cmake/Kernels.cmake)
// and only a CPU that reports them may call what is here; vector.h says what follows from
// that.
#if defined(__x86_64__)

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "vector_ops_avx2.cc needs -mavx2 -mfma -mf16c"
#endif

#include "kernels/cpu/simd/vector_ops_table.h"

namespace moracle::cpu {

constinit const VectorOps kAvx2VectorOps = table("avx2");

}  // namespace moracle::cpu

#endif
