// VectorOps for AVX2, FMA and F16C. Only this file is built with their flags (cmake/Kernels.cmake)
// and only a CPU that reports them may call what is here; vector_ops.inc says what follows from
// that.
#if defined(__x86_64__)

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "vector_ops_avx2.cc needs -mavx2 -mfma -mf16c"
#endif

#define MORACLE_VECTOR_AVX2 1
#include "kernels/cpu/vector_ops.inc"

namespace moracle::cpu {

constinit const VectorOps kAvx2VectorOps = table("avx2");

}  // namespace moracle::cpu

#endif
