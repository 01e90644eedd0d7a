// Assigns rows to experts, on host memory, and reports invalid ids.
#include <algorithm>

#include "base/text.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/device/device_error.h"

namespace moracle {

void CpuOps::keep_error(const char* place, std::string need, std::string fact) {
  const std::lock_guard lock(error_mutex_);
  if (error_) return;  // keep the first error
  error_ = Error{ErrorKind::kInvalidArgument, "",
                 error_place(error_scopes_.name(error_scopes_.current()), place), std::move(need),
                 std::move(fact)};
}

Status CpuOps::take_device_error() {
  const std::lock_guard lock(error_mutex_);
  error_scopes_.collected();
  if (!error_) return {};
  Error error = *std::move(error_);
  error_.reset();
  return error;
}

Status CpuOps::plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k,
                         int64_t num_experts, const int32_t* expert_map, int64_t num_local,
                         const RowPlan& plan, Stream) {
  // Counting sort; stable, so the order of an expert's rows is the order of the tokens.
  auto local = [&](int32_t id) -> int32_t {
    if (id < 0 || id >= num_experts) return -1;
    return expert_map ? expert_map[id] : id;
  };
  std::fill(plan.expert_offsets, plan.expert_offsets + num_local + 1, 0);
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    const int32_t id = topk_ids[i], expert = local(id);
    if (expert >= 0) ++plan.expert_offsets[expert + 1];
    if (id < -1 || id >= num_experts) {
      keep_error("topk_ids", str("-1, or an expert from 0 to ", num_experts - 1),
                 str("choice ", i % top_k, " of token ", i / top_k, " is ", id));
    }
  }
  for (int64_t e = 0; e < num_local; ++e) plan.expert_offsets[e + 1] += plan.expert_offsets[e];
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    plan.slot_row[i] = -1;
    const int32_t expert = local(topk_ids[i]);
    if (expert < 0) continue;
    // The running offset of an expert moves to its end here and is reset below.
    const int32_t row = plan.expert_offsets[expert]++;
    plan.row_token[row] = static_cast<int32_t>(i / top_k);
    plan.row_slot[row] = static_cast<int32_t>(i);
    plan.slot_row[i] = row;
  }
  for (int64_t e = num_local; e > 0; --e) plan.expert_offsets[e] = plan.expert_offsets[e - 1];
  plan.expert_offsets[0] = 0;
  return {};
}

Status CpuOps::plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                 const RowPlan& plan, Stream) {
  int32_t row = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    plan.expert_offsets[e] = row;
    const int64_t count = std::clamp<int64_t>(counts[e], 0, max_tokens);
    if (count != counts[e]) {
      keep_error("expert_num_tokens", str("0 to ", max_tokens, " tokens for each expert"),
                 str("expert ", e, " has ", counts[e]));
    }
    for (int64_t i = 0; i < max_tokens; ++i) {
      const auto slot = static_cast<int32_t>(e * max_tokens + i);
      plan.slot_row[slot] = i < count ? row : -1;
      if (i >= count) continue;
      plan.row_slot[row] = slot;
      plan.row_token[row++] = slot;
    }
  }
  plan.expert_offsets[num_experts] = row;
  return {};
}

}  // namespace moracle
