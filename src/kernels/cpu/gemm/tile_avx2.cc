// The tile loops for AVX2, FMA and F16C. Only this file is built with their flags
// (cmake/Kernels.cmake) and only a CPU that reports them may call what is here. So it must not hand
// an inline function to the linker: it includes nothing but tile_loops.h, which says why.
#if defined(__x86_64__)

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "tile_avx2.cc needs -mavx2 -mfma -mf16c"
#endif

#include "kernels/cpu/gemm/tile_loops.h"

namespace moracle::cpu {

constinit const TileKernels kAvx2Tiles = table("avx2");

}  // namespace moracle::cpu

#endif
