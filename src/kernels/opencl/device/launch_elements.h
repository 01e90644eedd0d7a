// Launches kernels that visit every element of a matrix: FOR_EACH_ELEMENT in elements.cl.
#pragma once

#include "kernels/opencl/device/launch.h"

namespace moracle::opencl {

/// Work-items in a group of an element-wise kernel.
constexpr int64_t kElementThreads = 256;

/// Launches `name` with groups for every row and tile of TILE_COLS columns.
template <class... Args>
Status launch_elements(const Queue& queue, Stream stream, const KernelName& name, int64_t rows,
                       int64_t cols, const Args&... args) {
  constexpr int64_t kTileCols = 1024;
  const int64_t threads = std::min(kElementThreads, queue.max_group);
  return launch(queue, stream, name, rows * ((cols + kTileCols - 1) / kTileCols), threads, args...);
}

}  // namespace moracle::opencl
