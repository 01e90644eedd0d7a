#include "kernels/opencl/simt/opencl_simt_plan.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/groups.h"
#include "layout/vnni16.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl {

namespace {

// Sums of codes stay integers to the end of the row if one scale covers all columns on both sides.
bool sums_whole_rows(const MatrixShape& shape, const Scheme& scheme) {
  return scheme.activation && scheme.activation->dtype == DType::kI8 &&
         shape.key.dtype == DType::kI8 && moracle::num_groups(shape) == 1 && !shape.key.minimums &&
         num_groups(*scheme.activation, shape.k) == 1;
}

// True if gates and the outputs that they multiply fill separate panels.
bool simt_activates(const MatrixShape& shape, const ActivationSpec& activation) {
  return !is_gated(activation.function) || shape.n % (2 * vnni16::kRows) == 0;
}

OpenClForm form_of(OpenClForm::Kernel kernel, const KernelRequest& request) {
  return {kernel, sums_whole_rows(request.shape, request.scheme) ? OpenClForm::Sums::kIntegers
                                                                 : OpenClForm::Sums::kFloats};
}

// Products and sums are f32, so no value loses bits.
KernelPlan plan_common(const KernelRequest& request) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.deterministic = true;
  plan.activates =
      request.activation != nullptr && simt_activates(request.shape, *request.activation);
  return plan;
}

// The two kernels of opencl-simt add a row's products in different orders.
KernelPlan plan_simt(const KernelRequest& request, const Machine&) {
  KernelPlan plan = plan_common(request);
  const int64_t experts = std::max<int64_t>(request.num_experts, 1);
  const int64_t last = kGemvRows * experts / std::max<int64_t>(request.rows_per_token, 1);
  const bool exact = sums_whole_rows(request.shape, request.scheme);
  const bool one = last >= request.max_num_tokens || (request.deterministic && !exact);
  if (one || last >= request.min_num_tokens) {
    PlannedKernel& gemv = plan.kernels.emplace_back();
    gemv.form = form_of(OpenClForm::Kernel::kGemv, request);
    if (!one) gemv.range.to_tokens = last;
  }
  if (!one) {
    const int64_t from = plan.kernels.empty() ? 1 : last + 1;
    PlannedKernel& gemm = plan.kernels.emplace_back();
    gemm.form = form_of(OpenClForm::Kernel::kGemm, request);
    gemm.range.from_tokens = from;
  }
  plan.deterministic = exact || plan.kernels.size() == 1;
  return plan;
}

KernelPlan plan_vectors(const KernelRequest& request, const Machine&) {
  KernelPlan plan = plan_common(request);
  plan.kernels = {{form_of(OpenClForm::Kernel::kVectors, request)}};
  return plan;
}

}  // namespace
}  // namespace opencl

const Kernels kOpenClSimtKernels = {opencl::plan_simt, opencl::kMakeSimt};
const Kernels kOpenClVectorsKernels = {opencl::plan_vectors, opencl::kMakeVectors};

}  // namespace moracle
