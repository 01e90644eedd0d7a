// The tile loops for AVX2, FMA and F16C. cmake/Kernels.cmake builds only this file with their
// flags. Only a CPU that reports them may call its functions. So this file must not hand an inline
// function to the linker: it includes nothing but tile_loops.h, which gives the reason.
#if defined(__x86_64__)

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "tile_avx2.cc needs -mavx2 -mfma -mf16c"
#endif

#include "kernels/cpu/gemm/tile_loops.h"

namespace moracle::cpu {

constinit const TileKernels kAvx2Tiles = table("avx2");

}  // namespace moracle::cpu

#endif
