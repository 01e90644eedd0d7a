#include "kernels/check_ops.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/ops.h"

namespace moracle {

Status check_floats(std::string_view platform, std::initializer_list<const Matrix*> matrices) {
  for (const Matrix* m : matrices) {
    if (m->dtype == DType::kF32 || m->dtype == DType::kBF16 || m->dtype == DType::kF16) continue;
    return Error{ErrorKind::kUnsupported, "", std::string(platform),
                 "activations in f32, bf16 or f16", str("they are ", name(m->dtype))};
  }
  return {};
}

Status check_activation(const ActivationSpec& activation) {
  const bool needs_limit = activation.function == Activation::kSwigluOai ||
                           activation.function == Activation::kSwigluStep;
  if (activation.limit >= 0 && !(needs_limit && activation.limit == 0)) return {};
  return Error{ErrorKind::kInvalidArgument, "", str("activation ", name(activation.function)),
               "a limit above 0", str("it is ", activation.limit)};
}

Status check_routing(const Routing& routing, int64_t num_experts, bool has_bias, int64_t top_k) {
  const int64_t groups = routing.num_groups;
  auto wrong = [](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", "router", std::move(need), std::move(fact)};
  };
  if (routing.score == Score::kUnknown) return wrong("a known score function", "it is unknown");
  if (routing.correction_bias != has_bias)
    return wrong(routing.correction_bias ? "a correction bias" : "no correction bias",
                 has_bias ? "one is given" : "none is given");
  if (has_bias && routing.score == Score::kTopkThenSoftmax)
    return wrong(
        "a score function that runs before the top-k choice, because of the correction bias",
        "it is " + name(routing));
  if (routing.score == Score::kSparseMixer) {
    // Each of the two choices has weights of its own, so nothing is shared among groups.
    if (groups == 1 && !has_bias && top_k == 2 && num_experts >= 2) return {};
    return wrong("two of all experts for each token and no correction bias, with sparse mixer",
                 str("it is ", name(routing), ", top-", top_k, " of ", num_experts));
  }
  if (groups < 1 || num_experts % groups != 0 || routing.top_groups < 1 ||
      routing.top_groups > groups)
    return wrong(str("groups that divide ", num_experts, " experts equally"),
                 str("the request is the best ", routing.top_groups, " of ", groups, " groups"));
  const int64_t most = num_experts / groups * routing.top_groups;
  if (top_k < 1 || top_k > most)
    return wrong(str("1 to ", most, " experts per token"), str("it is ", top_k));
  return {};
}

Status check_top_k(const Matrix& numbers, int64_t k) {
  const int64_t most = std::min(numbers.cols, kMostTopK);
  if (k >= 1 && k <= most) return {};
  return Error{ErrorKind::kInvalidArgument, "", "largest",
               str("1 to ", most, " numbers of each row"), str("it is ", k)};
}

}  // namespace moracle
