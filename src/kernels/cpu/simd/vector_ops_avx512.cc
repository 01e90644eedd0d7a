// VectorOps for AVX-512 (F, BW, VL, DQ). cmake/Kernels.cmake builds only this file with their
// flags. Only a CPU that reports them may call its functions; vector.h explains the consequences.
#if defined(__x86_64__)

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || \
    !defined(__AVX512DQ__)
#error "vector_ops_avx512.cc needs -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif

#include "kernels/cpu/simd/vector_ops_table.h"

namespace moracle::cpu {

constinit const VectorOps kAvx512VectorOps = table("avx512");

}  // namespace moracle::cpu

#endif
