// Backend "cpu-avx2": row blocks of layout vnni16 in two registers of 256 bits each. int8 by int8
// is exact; AVX-VNNI multiplies four products at a time. Everything else is multiplied in f32. Few
// rows multiply codes directly, and reading the codes is the bottleneck; with many rows the
// products are. If a request allows bf16 activations, integer and fp4 weights are multiplied by
// int16 activations: twice the products of f32, and on average fewer lost bits than bf16.
#include "base/text.h"
#include "kernels/cpu/gemm/plan.h"

namespace moracle {

#if defined(__x86_64__)

namespace cpu_avx2 {
namespace {

using namespace cpu;

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  const bool vnni = missing(Isa::kAvxVnni, machine.cpu.isa) == Isa::kNone;
  const DotIsa isa = vnni ? DotIsa::kAvxVnni : DotIsa::kAvx2;
  const bool int16 = request.bf16_activations && has_int16(request.shape, request.scheme, isa);
  const Operand arithmetic =
      int16 ? Operand::kInt16 : arithmetic_for(request.shape, request.scheme, false, 4);
  KernelPlan plan = plan_gemm(request, arithmetic, isa, machine.cpu.threads);
  if (int16) {
    plan.reason =
        str("int16 products: 16 in each instruction, f32 8; activations in 32,767 steps of the "
            "largest of ",
            plan.product_group, " columns");
  }
  return plan;
}

}  // namespace
}  // namespace cpu_avx2

const Kernels kCpuAvx2Kernels = {cpu_avx2::plan, cpu::make_gemm};

#else

// Other architectures lack these instructions. The rule that says so runs before any plan.
const Kernels kCpuAvx2Kernels = {nullptr, nullptr};

#endif

}  // namespace moracle
