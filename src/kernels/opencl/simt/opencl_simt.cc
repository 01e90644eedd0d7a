// Backend "opencl-simt": plain OpenCL C on layout vnni16, for GPUs without subgroups or 16-bit
// floats. gemv.cl reads each weight for a few rows of activations; gemm.cl converts tiles
// to f32 in local memory.
#include "base/text.h"
#include "kernels/opencl/opencl_makers.h"
#include "kernels/opencl/simt/opencl_simt_plan.h"
#include "kernels/opencl/simt/simt_linear.h"

namespace moracle::opencl {

Result<std::unique_ptr<GroupedLinear>> make_simt(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device) {
  constexpr int64_t kSplits = 8;
  const auto gemv = [&](const OpenClForm& form, int64_t rows) {
    return SimtKernel{.form = form,
                      .file = "simt/gemv.cl",
                      .function = "gemv",
                      .options = str(" -D SPLITS=", kSplits, " -D ROWS=", rows),
                      .items = 16 * kSplits,
                      .rows = rows,
                      .panels = 4};
  };
  std::vector<SimtKernel> kernels;
  for (const PlannedKernel& planned : plan.kernels) {
    const OpenClForm& form = std::get<OpenClForm>(planned.form);
    if (form.kernel == OpenClForm::Kernel::kGemv) {
      // A work-group for each row finds its expert by search; with many rows most of these groups
      // would only search.
      kernels = {gemv(form, 1), gemv(form, 4)};
      kernels[0].by_row = true;
      kernels[0].most_rows = 2 * weights.num_experts;
      if (planned.range.to_tokens > 0) kernels[1].most_rows = kGemvRows * weights.num_experts;
    } else {
      kernels.push_back({.form = form,
                         .file = "simt/gemm.cl",
                         .function = "gemm",
                         .items = 128,
                         .rows = 64,
                         .panels = 8});
    }
  }
  return make_simt_linear("opencl-simt", std::move(weights), device, std::move(kernels));
}

}  // namespace moracle::opencl
