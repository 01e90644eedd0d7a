// Backend "opencl-lines": plain OpenCL C on layout vnni16, for GPUs without subgroups or 16-bit
// floats. few_rows.cl reads each weight for a few rows of activations; many_rows.cl converts tiles
// to f32 in local memory.
#include "base/text.h"
#include "kernels/opencl/lines/line_linear.h"
#include "kernels/opencl/lines/opencl_lines_plan.h"
#include "kernels/opencl/opencl_makers.h"

namespace moracle::opencl {

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  Device& device) {
  constexpr int64_t kSplits = 8;
  const auto few = [&](const OpenClForm& form, int64_t rows) {
    return LineKernel{.form = form,
                      .file = "lines/few_rows.cl",
                      .function = "few_rows",
                      .options = str(" -D SPLITS=", kSplits, " -D ROWS=", rows),
                      .items = 16 * kSplits,
                      .rows = rows,
                      .panels = 4};
  };
  std::vector<LineKernel> kernels;
  for (const PlannedKernel& planned : plan.kernels) {
    const OpenClForm& form = std::get<OpenClForm>(planned.form);
    if (form.kernel == OpenClForm::Kernel::kFewRows) {
      // A work-group for each row finds its expert by search; with many rows most of these groups
      // would only search.
      kernels = {few(form, 1), few(form, 4)};
      kernels[0].by_row = true;
      kernels[0].most_rows = 2 * weights.num_experts;
      if (planned.range.to_tokens > 0) kernels[1].most_rows = kFewRows * weights.num_experts;
    } else {
      kernels.push_back({.form = form,
                         .file = "lines/many_rows.cl",
                         .function = "many_rows",
                         .items = 128,
                         .rows = 64,
                         .panels = 8});
    }
  }
  return make_line_linear("opencl-lines", std::move(weights), device, std::move(kernels));
}

}  // namespace moracle::opencl
