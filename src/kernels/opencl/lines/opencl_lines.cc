// Backend "opencl-lines": plain OpenCL C on layout vnni16, for GPUs without subgroups or 16-bit
// floats. few_rows.cl reads each weight for a few rows of activations; many_rows.cl decodes tiles
// to local memory.
#include "base/text.h"
#include "kernels/opencl/lines/line_linear.h"
#include "kernels/opencl/lines/opencl_lines_plan.h"
#include "kernels/opencl/opencl_makers.h"

namespace moracle::opencl {

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  Device& device) {
  constexpr int64_t kSplits = 8;
  const MatrixShape& shape = weights.shape;
  const auto few = [&](int64_t rows) {
    return LineKernel{.name = few_rows_name(shape, weights.scheme),
                      .file = "lines/few_rows.cl",
                      .function = "few_rows",
                      .options = str(" -D SPLITS=", kSplits, " -D ROWS=", rows),
                      .items = 16 * kSplits,
                      .rows = rows,
                      .panels = 4};
  };
  std::vector<LineKernel> kernels = {few(1), few(4)};
  // A work-group for each row finds its expert by search; with many rows most of these groups would
  // only search.
  kernels[0].by_row = true;
  kernels[0].most_rows = 2 * weights.num_experts;
  // The order of a row's sums must not depend on the other rows, unless the sums are exact.
  if (!plan.deterministic || sums_whole_rows(shape, weights.scheme)) {
    kernels[1].most_rows = kFewRows * weights.num_experts;
    kernels.push_back({.name = many_rows_name(shape, weights.scheme),
                       .file = "lines/many_rows.cl",
                       .function = "many_rows",
                       .items = 128,
                       .rows = 64,
                       .panels = 8});
  }
  return make_line_linear("opencl-lines", std::move(weights), device, std::move(kernels));
}

}  // namespace moracle::opencl
