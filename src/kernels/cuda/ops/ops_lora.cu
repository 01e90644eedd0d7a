// Low-rank adapters (LoRA) beside a grouped GEMM. A block handles each row; each row may have any
// adapter.
#include "kernels/cuda/device/report.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kLoraThreads = 256;
constexpr int64_t kChunk = 512;  // ranks per pass: sums of A x that are kept at once

struct LoraArgs {
  Matrix x, y;
  const int32_t* row_index;
  const int32_t* offsets;
  const int32_t* row_token;
  const int32_t* lora_ids;
  int64_t adapters;
  LoraTable table;
  DeviceErrorCell* device_error;
};

// sums[j] = (row a_row + j of A) · x. A warp computes each sum.
__device__ void multiply_a(const LoraArgs& a, int64_t source, int64_t a_row, int64_t ranks,
                           float* sums) {
  const int lane = threadIdx.x % 32;
  for (int64_t j = threadIdx.x / 32; j < ranks; j += kLoraThreads / 32) {
    float sum = 0;
    for (int64_t k = lane; k < a.table.a.cols; k += 32)
      sum += load(a.table.a, a_row + j, k) * load(a.x, source, k);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) sums[j] = sum;
  }
}

__global__ void add_lora(LoraArgs a) {
  __shared__ float sums[kChunk];
  const LoraTable& table = a.table;
  const int64_t columns = table.n / table.num_slices;
  for (int64_t r = blockIdx.x; r < a.y.rows; r += gridDim.x) {
    const int64_t expert = a.offsets != nullptr ? expert_of(a.offsets, table.num_experts, r) : 0;
    if (expert >= table.num_experts) return;
    const int32_t token = a.row_token != nullptr ? a.row_token[r] : static_cast<int32_t>(r);
    const int32_t id = a.lora_ids[token];
    if (id < 0 || id >= a.adapters) {
      if (id != -1 && threadIdx.x == 0) report(a.device_error, token, id, a.adapters, 1);
      continue;
    }
    const int64_t source = a.row_index != nullptr ? a.row_index[r] : r;
    const int64_t pair = id * table.num_experts + expert;
    for (int64_t slice = 0; slice < table.num_slices; ++slice) {
      for (int64_t first = 0; first < table.rank; first += kChunk) {
        const int64_t ranks = min(kChunk, table.rank - first);
        __syncthreads();  // wait until the previous sums have been used
        multiply_a(a, source, (pair * table.num_slices + slice) * table.rank + first, ranks, sums);
        __syncthreads();
        for (int64_t n = slice * columns + threadIdx.x; n < (slice + 1) * columns;
             n += kLoraThreads) {
          float delta = 0;
          for (int64_t j = 0; j < ranks; ++j)
            delta += load(table.b, pair * table.n + n, first + j) * sums[j];
          // Skip zeros: -0 + 0 would change the sign of a zero.
          if (delta != 0) store(a.y, r, n, load(a.y, r, n) + delta);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::add_lora(const Matrix& x, const int32_t* row_index, const RowPlan& rows,
                         const int32_t* lora_ids, int64_t adapters, const LoraTable& table,
                         const Matrix& y, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &y, &table.a, &table.b}));
  const cuda::LoraArgs args{x,
                            y,
                            row_index,
                            rows.expert_offsets,
                            rows.row_token,
                            lora_ids,
                            adapters,
                            table,
                            device_errors_.cell(DeviceErrorKind::kLoraIds)};
  return cuda::launch(queue_, stream, "add_lora", cuda::add_lora, y.rows, cuda::kLoraThreads, 0,
                      args);
}

}  // namespace moracle
