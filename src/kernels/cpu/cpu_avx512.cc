// Backend "cpu-avx512": row blocks of layout vnni16 in registers of 512 bits. Activations that bf16
// holds exactly, or that may be rounded to bf16, are multiplied in bf16 if the CPU's measured rates
// are higher (oracle/rates): bf16 has twice the f32 rate on Zen 4, half of it on Sapphire Rapids.
// Other floats are multiplied in f32: two bf16 terms would be no faster.
#include "kernels/cpu/gemm/plan.h"
#include "oracle/rates/rates.h"

namespace moracle {

#if defined(__x86_64__)

namespace cpu_avx512 {
namespace {

using namespace cpu;

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  const auto arithmetic_with = [&](bool bf16) {
    return arithmetic_for(request.shape, request.scheme, bf16, 4);
  };
  const Bf16Choice choice = choose_bf16(machine.cpu);
  const bool both = (request.scheme.activation || request.bf16_activations) &&
                    arithmetic_with(true) == Operand::kBf16;
  const bool bf16 = both && choice.bf16;
  KernelPlan plan = plan_gemm(request, arithmetic_with(bf16),
                              bf16 ? DotIsa::kAvx512Bf16 : DotIsa::kAvx512, machine.cpu.threads);
  if (both) plan.reason = choice.reason;
  return plan;
}

}  // namespace
}  // namespace cpu_avx512

const Kernels kCpuAvx512Kernels = {cpu_avx512::plan, cpu::make_gemm};

#else

// Other architectures lack these instructions. The rule that says so runs before any plan.
const Kernels kCpuAvx512Kernels = {nullptr, nullptr};

#endif

}  // namespace moracle
