#include "parallel/dispatch/send_plan.h"

#include <algorithm>

#include "base/text.h"

namespace moracle {
namespace {

// Appends the rows for rank `r`.
void append_rows(std::span<const int32_t> ids, std::span<const float> weights, int64_t top_k,
                 const ExpertCopies& copies, int64_t r, int64_t size, SendPlan& plan) {
  const int64_t num_tokens = static_cast<int64_t>(ids.size()) / top_k;
  int64_t rows = 0, slots = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const std::span<const int32_t> own = ids.subspan(t * top_k, top_k);
    const auto is_there = [&](int32_t id) { return id >= 0 && copies.rank_of(t, id) == r; };
    if (std::none_of(own.begin(), own.end(), is_there)) continue;
    plan.token_rows[t * size + r] = static_cast<int32_t>(plan.num_sent());
    plan.row_tokens.push_back(static_cast<int32_t>(t));
    ++rows;
    for (int64_t j = 0; j < top_k; ++j) {
      plan.ids.push_back(is_there(own[j]) ? own[j] : -1);
      plan.weights.push_back(weights[t * top_k + j]);
      if (!is_there(own[j])) continue;
      plan.slot_rows[t * top_k + j] = static_cast<int32_t>(plan.num_slots() + slots);
      ++slots;
    }
  }
  plan.send_counts.push_back(rows);
  plan.slot_send_counts.push_back(slots);
}

}  // namespace

Result<SendPlan> plan_sends(std::span<const int32_t> ids, std::span<const float> weights,
                            int64_t top_k, const ExpertCopies& copies, int64_t size) {
  const auto num_experts = static_cast<int32_t>(copies.num_experts());
  for (const int32_t id : ids) {
    if (id >= -1 && id < num_experts) continue;
    return Error{ErrorKind::kInvalidArgument, "", "topk_ids",
                 str("-1, or an expert from 0 to ", num_experts - 1), str("one is ", id)};
  }
  SendPlan plan;
  plan.token_rows.assign(ids.size() / top_k * size, -1);
  plan.slot_rows.assign(ids.size(), -1);
  for (int64_t r = 0; r < size; ++r) append_rows(ids, weights, top_k, copies, r, size, plan);
  return plan;
}

}  // namespace moracle
