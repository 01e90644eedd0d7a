// Backend "cpu-amx": lines of layout vnni16, sixteen at a time as tiles of AMX; int8 by int8
// exactly, everything else in bf16. One row fills a tile as well as sixteen: reading weights bounds
// both.
#include "kernels/cpu/line_linear.h"

namespace moracle {

#if defined(__x86_64__)

namespace {

using namespace cpu;

KernelPlan plan(const KernelRequest& request, const Machine&) {
  return plan_lines(request, arithmetic_for(request.shape, request.scheme, true, 32), kAmxLines);
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan& plan,
                                            Device& device) {
  const Arithmetic arithmetic = arithmetic_for(weights.shape, weights.scheme, true, 32);
  return make_lines(std::move(weights), plan, arithmetic, kAmxLines, device);
}

}  // namespace

const Kernels kCpuAmxKernels = {plan, make};

#else

// No other processor has these instructions, and the rule about them comes before any plan.
const Kernels kCpuAmxKernels = {nullptr, nullptr};

#endif

}  // namespace moracle
