// VectorOps for any CPU, in the compiler's 128-bit vectors: baseline x86-64, NEON, and so on.
#include "kernels/cpu/simd/vector_ops_table.h"

namespace moracle::cpu {

constinit const VectorOps kPortableVectorOps = table("portable");

}  // namespace moracle::cpu
