// Backend "cpu": layout vnni16 in portable code, for CPUs without AVX2 and for other architectures.
// int8 by int8 is exact; everything else is multiplied in f32. Few rows are multiplied by codes
// directly; for more rows of floats, codes are decoded to f32 first.
#include "kernels/cpu/gemm/plan.h"

namespace moracle {
namespace cpu_row {
namespace {

using namespace cpu;

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  return plan_gemm(request, arithmetic_for(request.shape, request.scheme, false, 4),
                   kPortableUkernels, machine.cpu.threads);
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan& plan,
                                            Device& device) {
  const LineArithmetic arithmetic = arithmetic_for(weights.shape, weights.scheme, false, 4);
  return make_gemm(std::move(weights), plan, arithmetic, kPortableUkernels, device);
}

}  // namespace
}  // namespace cpu_row

const Kernels kCpuKernels = {cpu_row::plan, cpu_row::make};

}  // namespace moracle
