// Backend "opencl-vectors": layout vnni16 on CPUs, whose compilers turn OpenCL's vectors into those
// of the CPU. The kernel is in vectors.cl.
#include "base/text.h"
#include "kernels/opencl/opencl_makers.h"
#include "kernels/opencl/simt/simt_linear.h"

namespace moracle::opencl {

Result<std::unique_ptr<GroupedLinear>> make_vectors(KernelWeights&& weights, const KernelPlan& plan,
                                                    Device& device) {
  constexpr int64_t kPanels = 4;  // enough work for one call of the kernel
  std::vector<SimtKernel> kernels;
  for (const int64_t rows : {1, 4}) {
    kernels.push_back({.form = std::get<OpenClForm>(plan.kernels.front().form),
                       .file = "simt/vectors.cl",
                       .function = "vectors",
                       .options = str(" -D WIDE -D PANELS=", kPanels, " -D ROWS=", rows),
                       .rows = rows,
                       .panels = kPanels,
                       .panels_per_gate = 1});
  }
  kernels[0].by_row = true;
  kernels[0].most_rows = 2 * weights.num_experts;
  return make_simt_linear("opencl-vectors", std::move(weights), device, std::move(kernels));
}

}  // namespace moracle::opencl
