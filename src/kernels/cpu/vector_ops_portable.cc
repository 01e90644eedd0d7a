// VectorOps for any CPU, in the compiler's 128-bit vectors: baseline x86-64, NEON, and so on.
#include "kernels/cpu/vector_ops.inc"

namespace moracle::cpu {

constinit const VectorOps kPortableVectorOps = table("portable");

}  // namespace moracle::cpu
