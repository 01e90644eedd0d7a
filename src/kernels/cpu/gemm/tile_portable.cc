// The tile loops for any CPU, in the compiler's 128-bit vectors: baseline x86-64, NEON, and so on.
#include "kernels/cpu/gemm/tile_loops.h"

namespace moracle::cpu {

constinit const TileKernels kPortableTiles = table("portable");

}  // namespace moracle::cpu
