// Backend "cpu-avx512": lines of layout vnni16 in registers of 512 bits. Activations that bf16
// holds exactly, or may be rounded to bf16, are multiplied in bf16 if the CPU supports it, except
// on CPUs with AMX. There (Sapphire and Emerald Rapids) bf16 products run at half of the f32 rate.
// Other floats are multiplied in f32: two bf16 parts would be no faster.
#include "kernels/cpu/gemm/line_linear.h"

namespace moracle {

#if defined(__x86_64__)

namespace cpu_avx512 {
namespace {

using namespace cpu;

const LineKernels& kernels_of(const Machine& machine) {
  const Isa isa = machine.cpu.isa;
  const bool bf16 =
      missing(Isa::kAvx512Bf16, isa) == Isa::kNone && missing(Isa::kAmxBf16, isa) != Isa::kNone;
  return bf16 ? kAvx512Bf16Lines : kAvx512Lines;
}

LineArithmetic arithmetic_of(const MatrixShape& shape, const Scheme& scheme, bool bf16_activations,
                             const LineKernels& kernels) {
  const bool bf16 = kernels.bf16 != nullptr && (scheme.activation || bf16_activations);
  return arithmetic_for(shape, scheme, bf16, 4);
}

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  const LineKernels& kernels = kernels_of(machine);
  const LineArithmetic arithmetic =
      arithmetic_of(request.shape, request.scheme, request.bf16_activations, kernels);
  return plan_lines(request, arithmetic, kernels, machine.cpu.threads);
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan& plan,
                                            Device& device) {
  const Machine here = Machine::here();
  const LineKernels& kernels = kernels_of(here);
  const bool bf16_activations = plan.product_bits == kBf16Bits;
  const LineArithmetic arithmetic =
      arithmetic_of(weights.shape, weights.scheme, bf16_activations, kernels);
  return make_lines(std::move(weights), plan, arithmetic, kernels, device);
}

}  // namespace
}  // namespace cpu_avx512

const Kernels kCpuAvx512Kernels = {cpu_avx512::plan, cpu_avx512::make};

#else

// No other architecture has these instructions; the rule about them runs before any plan.
const Kernels kCpuAvx512Kernels = {nullptr, nullptr};

#endif

}  // namespace moracle
