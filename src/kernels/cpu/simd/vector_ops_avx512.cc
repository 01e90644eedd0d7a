// VectorOps for AVX-512 (F, BW, VL, DQ). Only this file is built with their flags
// (cmake/Kernels.cmake) and only a CPU that reports them may call what is here; vector.h says
// what follows from that.
#if defined(__x86_64__)

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || \
    !defined(__AVX512DQ__)
#error "vector_ops_avx512.cc needs -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif

// g++ 12 takes the deliberately undefined operands in its own avx512 headers for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "kernels/cpu/simd/vector_ops_table.h"

namespace moracle::cpu {

constinit const VectorOps kAvx512VectorOps = table("avx512");

}  // namespace moracle::cpu

#endif
