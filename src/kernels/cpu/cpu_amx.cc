// Backend "cpu-amx": row blocks of layout vnni16, sixteen at a time as AMX tiles. int8 by int8 is
// exact; everything else is multiplied in bf16. One row uses the same tile as sixteen rows, because
// reading weights is the bottleneck of both.
#include "kernels/cpu/gemm/plan.h"
#include "layout/vnni16.h"

namespace moracle {

#if defined(__x86_64__)

namespace cpu_amx {
namespace {

using namespace cpu;

// Groups of 32 columns are half an int8 tile: each group would need its own scaling. Power-of-two
// scales are folded into bf16 row blocks, which hold int8 exactly.
Operand arithmetic_of(const MatrixShape& shape, const Scheme& scheme) {
  const bool powers = shape.key.quantized() && vnni16::scale_is_exponent(shape);
  return powers ? Operand::kBf16 : arithmetic_for(shape, scheme, true, 32);
}

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  return plan_gemm(request, arithmetic_of(request.shape, request.scheme), DotIsa::kAmx,
                   machine.cpu.threads);
}

}  // namespace
}  // namespace cpu_amx

const Kernels kCpuAmxKernels = {cpu_amx::plan, cpu::make_gemm};

#else

// Other architectures lack these instructions. The rule that says so runs before any plan.
const Kernels kCpuAmxKernels = {nullptr, nullptr};

#endif

}  // namespace moracle
