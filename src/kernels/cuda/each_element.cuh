// Element-wise kernels.
#pragma once

#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {

/// Errors: a matrix is not f32, bf16 or f16.
inline Status check_floats(std::initializer_list<const Matrix*> matrices) {
  return moracle::check_floats("cuda", matrices);
}

constexpr int kElementThreads = 256;
constexpr int64_t kElementColumns = 1024;  // columns of one row that a block processes

template <class Each>
__global__ void each_element(int64_t rows, int64_t cols, Each each) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t tiles = (cols + kElementColumns - 1) / kElementColumns;
  for (int64_t b = blockIdx.x; b < rows * tiles; b += gridDim.x) {
    const int64_t r = b / tiles, first = b % tiles * kElementColumns;
    const int64_t last = min(cols, first + kElementColumns);
    for (int64_t c = first + threadIdx.x; c < last; c += kElementThreads) each(r, c);
  }
}

/// Calls each(r, c) for every element of [rows, cols].
template <class Each>
Status launch_elements(const Queue& queue, Stream stream, const char* name, int64_t rows,
                       int64_t cols, const Each& each) {
  const int64_t tiles = (cols + kElementColumns - 1) / kElementColumns;
  return launch_early(queue, stream, name, each_element<Each>, rows * tiles, kElementThreads, 0,
                      rows, cols, each);
}

}  // namespace moracle::cuda
