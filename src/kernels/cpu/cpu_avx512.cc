// Backend "cpu-avx512": lines of layout vnni16 in registers of 512 bits. bf16 products where the
// CPU has them, but not beside AMX: there (Sapphire and Emerald Rapids) they run at half of the
// rate of f32 products.
#include "kernels/cpu/line_linear.h"

namespace moracle {
namespace {

using namespace cpu;

const LineKernels& kernels_of(const Machine& machine) {
  const Isa isa = machine.cpu.isa;
  const bool bf16 =
      missing(Isa::kAvx512Bf16, isa) == Isa::kNone && missing(Isa::kAmxBf16, isa) != Isa::kNone;
  return bf16 ? kAvx512Bf16Lines : kAvx512Lines;
}

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  const LineKernels& kernels = kernels_of(machine);
  return plan_lines(
      request, arithmetic_for(request.shape, request.scheme, kernels.bf16 != nullptr, 4), kernels);
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan& plan,
                                            Device& device) {
  const LineKernels& kernels = kernels_of(Machine::here());
  const Arithmetic arithmetic =
      arithmetic_for(weights.shape, weights.scheme, kernels.bf16 != nullptr, 4);
  return make_lines(std::move(weights), plan, arithmetic, kernels, device);
}

}  // namespace

const Kernels kCpuAvx512Kernels = {plan, make};

}  // namespace moracle
