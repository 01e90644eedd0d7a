#include "kernels/cpu/sampling/draw_ops.h"

#include "oracle/machine/detect.h"

namespace moracle::cpu {

const DrawOps& draw_ops() {
#if defined(__x86_64__)
  static const Isa isa = detect_cpu().isa;
  const auto has = [](Isa wanted) { return missing(wanted, isa) == Isa::kNone; };
  if (has(Isa::kAvx512 | Isa::kAvx2)) return kAvx512DrawOps;
  if (has(Isa::kAvx2)) return kAvx2DrawOps;
#endif
  return kPortableDrawOps;
}

}  // namespace moracle::cpu
