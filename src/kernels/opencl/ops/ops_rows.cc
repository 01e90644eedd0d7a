// Assigns rows to experts.
#include <algorithm>

#include "base/try.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_rows {
namespace {

const KernelName kPlanRows{"ops/rows.cl", "plan_rows"};
const KernelName kPlanBatchedRows{"ops/rows.cl", "plan_batched_rows"};

// Few work-items have longer runs of slots but count more experts at a time.
constexpr int64_t kPlanThreads = 128, kThreads = 256;
constexpr int64_t kCounters = 2048;  // COUNTERS in rows.cl

}  // namespace
}  // namespace opencl::ops_rows

Status OpenClOps::plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k,
                            int64_t num_experts, const int32_t* expert_map, int64_t num_local,
                            const RowPlan& plan, Stream stream) {
  const int64_t threads = std::min(opencl::ops_rows::kPlanThreads, queue_.max_group);
  const int64_t per_block = opencl::ops_rows::kCounters / threads;
  const int64_t blocks = std::max<int64_t>((num_local + per_block - 1) / per_block, 1);
  return opencl::launch(queue_, stream, opencl::ops_rows::kPlanRows, blocks, threads, topk_ids,
                        num_tokens * top_k, top_k, num_experts, expert_map, num_local,
                        plan.expert_offsets, plan.row_token, plan.slot_row, plan.row_slot,
                        device_errors_.cell(DeviceErrorKind::kIds));
}

Status OpenClOps::plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                    const RowPlan& plan, Stream stream) {
  const int64_t threads = std::min(opencl::ops_rows::kThreads, queue_.max_group);
  return opencl::launch(queue_, stream, opencl::ops_rows::kPlanBatchedRows, num_experts, threads,
                        counts, num_experts, max_tokens, plan.expert_offsets, plan.row_token,
                        plan.slot_row, plan.row_slot,
                        device_errors_.cell(DeviceErrorKind::kCounts));
}

}  // namespace moracle
