#include "kernels/cpu/simd/vector_ops.h"

#include "oracle/detect.h"

namespace moracle::cpu {

const VectorOps& vector_ops() {
#if defined(__x86_64__)
  static const Isa isa = detect_cpu().isa;
  if (missing(Isa::kAvx512 | Isa::kAvx2, isa) == Isa::kNone) return kAvx512VectorOps;
  if (missing(Isa::kAvx2, isa) == Isa::kNone) return kAvx2VectorOps;
#endif
  return kPortableVectorOps;
}

}  // namespace moracle::cpu
