#include "oracle/selection_json.h"

#include "oracle/backend.h"
#include "oracle/preferences.h"

namespace moracle {
namespace {

using Json = nlohmann::ordered_json;

Json most_or_null(int64_t most) {
  return most == 0 ? Json(nullptr) : Json(most);
}

Json kernels_json(const MatrixPlan& plan) {
  Json kernels = Json::array();
  for (const KernelUse& use : plan.kernels) {
    kernels.push_back({{"name", use.name},
                       {"from_tokens", use.range.from_tokens},
                       {"to_tokens", most_or_null(use.range.to_tokens)},
                       {"from_rows", use.range.from_rows},
                       {"to_rows", most_or_null(use.range.to_rows)}});
  }
  return kernels;
}

}  // namespace

Json matrices_json(const std::vector<MatrixPlan>& matrices) {
  Json json = Json::array();
  for (const MatrixPlan& matrix : matrices) {
    json.push_back({{"n", matrix.shape.n},
                    {"k", matrix.shape.k},
                    {"input_dtype", name(matrix.input_dtype)},
                    {"product_bits", matrix.product_bits},
                    {"reason", matrix.reason.empty() ? Json() : Json(matrix.reason)},
                    {"kernels", kernels_json(matrix)}});
  }
  return json;
}

Json plan_json(const std::optional<Plan>& plan) {
  if (!plan) return nullptr;
  return {{"backend", plan->backend->name},          {"layout", plan->layout},
          {"weight_bytes", plan->weight_bytes},      {"workspace_bytes", plan->workspace_bytes},
          {"scratch_bytes", plan->scratch_bytes},    {"max_num_tokens", plan->max_num_tokens},
          {"in_this_build", plan->backend->built()}, {"matrices", matrices_json(plan->matrices)}};
}

Json considered_json(const Selection& selection) {
  Json considered = Json::array();
  for (const Verdict& verdict : selection.considered) {
    Json reasons = Json::array();
    for (const Reason& reason : verdict.reasons)
      reasons.push_back({{"rule", reason.rule}, {"need", reason.need}, {"have", reason.have}});
    Json tuned = Json::array();
    for (const TunedTime& time : verdict.tuned)
      tuned.push_back({{"num_tokens", time.num_tokens}, {"us_median", time.us}});
    considered.push_back(
        {{"backend", verdict.backend->name},
         {"accepted", verdict.accepted()},
         {"in_this_build", verdict.backend->built()},
         {"reasons", reasons},
         {"tuned", tuned},
         {"moved_back", verdict.moved_back ? Json(verdict.moved_back->reason) : Json(nullptr)}});
  }
  return considered;
}

std::string explain_json(const Selection& selection) {
  const LayerSpec& layer = selection.request.layer;
  const std::optional<Plan>& plan = selection.plan;
  const Json json = {{"layer", describe(layer)},
                     {"scheme", layer.scheme_name()},
                     {"chosen", plan ? Json(plan->backend->name) : Json(nullptr)},
                     {"weight_bytes", plan ? Json(plan->weight_bytes) : Json(nullptr)},
                     {"considered", considered_json(selection)},
                     {"plan", plan_json(plan)}};
  // Names come from files, which may hold invalid UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace moracle
