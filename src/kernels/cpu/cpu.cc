// Backend "cpu": layout vnni16 in portable code, for CPUs without AVX2 and for other architectures.
// int8 by int8 is exact; everything else is multiplied in f32. Few rows multiply codes directly;
// for more rows of floats, codes are first unpacked to f32.
#include "kernels/cpu/gemm/plan.h"

namespace moracle {
namespace {

KernelPlan plan_portable(const KernelRequest& request, const Machine& machine) {
  return cpu::plan_gemm(request, cpu::arithmetic_for(request.shape, request.scheme, false, 4),
                        cpu::DotIsa::kPortable, machine.cpu.threads);
}

}  // namespace

const Kernels kCpuKernels = {plan_portable, cpu::make_gemm};

}  // namespace moracle
