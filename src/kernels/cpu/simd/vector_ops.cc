#include "kernels/cpu/simd/vector_ops.h"

#include "oracle/machine/detect.h"

namespace moracle::cpu {

const VectorOps& vector_ops() {
#if defined(__x86_64__)
  static const Isa isa = detect_cpu().isa;
  const auto has = [](Isa wanted) { return missing(wanted, isa) == Isa::kNone; };
  if (has(Isa::kAvx512 | Isa::kAvx2)) {
    static const VectorOps table = [&] {
      VectorOps ops = kAvx512VectorOps;
      if (has(Isa::kAvx512Vnni)) ops.attend_int8 = attend_int8_avx512_vnni;
      if (has(Isa::kAvx512Bf16)) {
        ops.pack_bf16 = pack_bf16_avx512_bf16;
        ops.attend_bf16 = attend_bf16_avx512_bf16;
      }
      return ops;
    }();
    return table;
  }
  if (has(Isa::kAvx2)) {
    static const VectorOps table = [&] {
      VectorOps ops = kAvx2VectorOps;
      if (has(Isa::kAvxVnni)) ops.attend_int8 = attend_int8_avx_vnni;
      return ops;
    }();
    return table;
  }
#endif
  return kPortableVectorOps;
}

}  // namespace moracle::cpu
