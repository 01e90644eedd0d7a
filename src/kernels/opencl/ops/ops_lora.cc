// Low-rank adapters (LoRA) beside a grouped GEMM.
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_lora {
namespace {

const KernelName kAddLora{"ops/lora.cl", "add_lora"};
constexpr int64_t kThreads = 256;  // MOST_THREADS in lora.cl

}  // namespace
}  // namespace opencl::ops_lora

Status OpenClOps::add_lora(const Matrix& x, const int32_t* row_index, const RowPlan& rows,
                           const int32_t* lora_ids, int64_t adapters, const LoraTable& table,
                           const Matrix& y, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x, &y, &table.a, &table.b}));
  const int64_t threads = std::min(opencl::ops_lora::kThreads, queue_.max_group);
  return opencl::launch(queue_, stream, opencl::ops_lora::kAddLora, y.rows, threads, x, row_index,
                        rows.expert_offsets, rows.row_token, lora_ids, adapters, table.a, table.b,
                        table.num_experts, table.num_slices, table.rank, table.n, table.a.cols, y,
                        y.rows, device_errors_.cell(DeviceErrorKind::kLoraIds));
}

}  // namespace moracle
