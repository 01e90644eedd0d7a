#include "parallel/cuda/nccl_ep/scatter_rows.h"

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"

namespace moracle::cuda {
namespace {

constexpr int kScatterThreads = 256;

__global__ void scatter_rows_kernel(const int4* from, const int32_t* place, const int32_t* count,
                                    int64_t most_rows, int64_t row_parts, int4* to) {
  const int64_t rows = min(static_cast<int64_t>(*count), most_rows);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t at = place[r];
    for (int64_t i = threadIdx.x; i < row_parts; i += blockDim.x)
      to[at * row_parts + i] = from[r * row_parts + i];
  }
}

}  // namespace

Status scatter_rows(const Queue& queue, const Matrix& from, const int32_t* place,
                    const int32_t* count, const Matrix& to, Stream stream) {
  if (from.rows == 0) return {};
  const int64_t row_parts = from.cols * bits(from.dtype) / 8 / static_cast<int64_t>(sizeof(int4));
  return launch(queue, stream, "scatter_rows", scatter_rows_kernel,
                std::min<int64_t>(from.rows, int64_t{queue.multiprocessors} * 8), kScatterThreads,
                0, static_cast<const int4*>(from.data), place, count, from.rows, row_parts,
                static_cast<int4*>(to.data));
}

}  // namespace moracle::cuda
