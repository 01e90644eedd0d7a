#include "kernels/opencl/lines/opencl_lines_plan.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"
#include "layout/groups.h"
#include "layout/vnni16.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl {

bool sums_whole_rows(const MatrixShape& shape, const Scheme& scheme) {
  return scheme.activation && scheme.activation->dtype == DType::kI8 &&
         shape.key.dtype == DType::kI8 && moracle::num_groups(shape) == 1 &&
         num_groups(*scheme.activation, shape.k) == 1;
}

namespace {

// Whether gates and the outputs that they multiply fill separate panels.
bool lines_activate(const MatrixShape& shape, const ActivationSpec& activation) {
  return !is_gated(activation.function) || shape.n % (2 * vnni16::kRows) == 0;
}

std::string named(const char* tiles, const MatrixShape& shape, const Scheme& scheme) {
  return str(tiles, sums_whole_rows(shape, scheme) ? ", exact sums" : ", f32 products and sums");
}

// Nothing is rounded to fewer bits than a float has.
KernelPlan plan_common(const KernelRequest& request) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  plan.deterministic = true;
  plan.activates =
      request.activation != nullptr && lines_activate(request.shape, *request.activation);
  return plan;
}

// The two kernels of opencl-lines add a row's products in different orders.
KernelPlan plan_lines(const KernelRequest& request, const Machine&) {
  KernelPlan plan = plan_common(request);
  const int64_t experts = std::max<int64_t>(request.num_experts, 1);
  const int64_t last = kFewRows * experts / std::max<int64_t>(request.rows_per_token, 1);
  const bool exact = sums_whole_rows(request.shape, request.scheme);
  const bool one = last >= request.max_num_tokens || (request.deterministic && !exact);
  if (one || last >= request.min_num_tokens) {
    plan.kernels.push_back({1, few_rows_name(request.shape, request.scheme)});
    if (!one) plan.kernels.back().to_tokens = last;
  }
  if (!one) {
    plan.kernels.push_back(
        {plan.kernels.empty() ? 1 : last + 1, many_rows_name(request.shape, request.scheme)});
  }
  plan.deterministic = exact || plan.kernels.size() == 1;
  return plan;
}

KernelPlan plan_vectors(const KernelRequest& request, const Machine&) {
  KernelPlan plan = plan_common(request);
  plan.kernels = {{1, vectors_name(request.shape, request.scheme)}};
  return plan;
}

}  // namespace

std::string few_rows_name(const MatrixShape& shape, const Scheme& scheme) {
  return named("lines of 16 rows", shape, scheme);
}
std::string many_rows_name(const MatrixShape& shape, const Scheme& scheme) {
  return named("tiles of 64 x 128 in local memory", shape, scheme);
}
std::string vectors_name(const MatrixShape& shape, const Scheme& scheme) {
  return named("lines of 16 rows as vectors", shape, scheme);
}

}  // namespace opencl

const Kernels kOpenClLinesKernels = {opencl::plan_lines, opencl::kMakeLines};
const Kernels kOpenClVectorsKernels = {opencl::plan_vectors, opencl::kMakeVectors};

}  // namespace moracle
