#include "kernels/cpu/simd/vector_ops.h"

#include "oracle/detect.h"

namespace moracle::cpu {

const VectorOps& vector_ops() {
#if defined(__x86_64__)
  static const Isa isa = detect_cpu().isa;
  const auto with = [](VectorOps table, void (*attend_codes)(const AttendArgs&)) {
    table.attend_codes = attend_codes;
    return table;
  };
  if (missing(Isa::kAvx512 | Isa::kAvx2, isa) == Isa::kNone) {
    if (missing(Isa::kAvx512Vnni, isa) != Isa::kNone) return kAvx512VectorOps;
    static const VectorOps vnni = with(kAvx512VectorOps, attend_codes_avx512_vnni);
    return vnni;
  }
  if (missing(Isa::kAvx2, isa) == Isa::kNone) {
    if (missing(Isa::kAvxVnni, isa) != Isa::kNone) return kAvx2VectorOps;
    static const VectorOps vnni = with(kAvx2VectorOps, attend_codes_avx_vnni);
    return vnni;
  }
#endif
  return kPortableVectorOps;
}

}  // namespace moracle::cpu
